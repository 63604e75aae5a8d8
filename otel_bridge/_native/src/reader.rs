//! The protobuf wire format, read as protobuf's own decoders read it (upb is the measure).

use std::fmt;

/// Messages below the request that may be nested in each other; protobuf's decoders have the same limit.
pub const DEPTH: u32 = 100;

pub const VARINT: u32 = 0;
pub const FIXED64: u32 = 1;
pub const SIZED: u32 = 2;
const GROUP: u32 = 3;
const GROUP_END: u32 = 4;
pub const FIXED32: u32 = 5;

/// A field's number and wire type as they stand together in front of it.
pub const fn tag(number: u32, wire_type: u32) -> u32 {
    number << 3 | wire_type
}

/// What a decoder can stumble over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Truncated,
    Varint,
    Tag,
    WireType(u32),
    GroupEnd,
    TooDeep,
    TooLarge,
}

/// Where and why bytes are not the message they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: usize,
    pub cause: Cause,
    /// Names of the fields around the fault, innermost first.
    path: Vec<&'static str>,
}

/// Boxed: the good path carries a pointer, and only a fault allocates.
pub type Read<T> = Result<T, Box<Fault>>;

#[cold]
#[inline(never)]
pub fn fault<T>(at: usize, cause: Cause) -> Read<T> {
    Err(Box::new(Fault {
        at,
        cause,
        path: Vec::new(),
    }))
}

/// Names the field in which a fault lies.
pub trait Within<T> {
    fn within(self, field: &'static str) -> Read<T>;
}

impl<T> Within<T> for Read<T> {
    #[inline]
    fn within(self, field: &'static str) -> Read<T> {
        self.map_err(|mut fault| {
            fault.path.push(field);
            fault
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "byte {} in ", self.at)?;
        if self.path.is_empty() {
            out.write_str("the request")?;
        }
        for (index, name) in self.path.iter().rev().enumerate() {
            write!(out, "{}{name}", if index == 0 { "" } else { "." })?;
        }
        match self.cause {
            Cause::Truncated => out.write_str(": the bytes end inside a field"),
            Cause::Varint => out.write_str(": a varint is longer than its type allows"),
            Cause::Tag => out.write_str(": a field number is 0 or too large"),
            Cause::WireType(found) => write!(out, ": wire type {found} does not exist"),
            Cause::GroupEnd => out.write_str(": a group ends that was not begun"),
            Cause::TooDeep => write!(out, ": nested deeper than {DEPTH} messages"),
            Cause::TooLarge => out.write_str(": larger than the 4 GiB that offsets reach"),
        }
    }
}

/// Reads fields between `pos` and the end of `data`; positions count from the start of the request.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    data: &'a [u8],
    pub pos: usize,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn new(data: &'a [u8], start: usize, end: usize) -> Self {
        Self {
            data: &data[..end],
            pos: start,
        }
    }

    #[inline(always)]
    pub fn done(&self) -> bool {
        self.pos >= self.data.len()
    }

    #[inline]
    pub fn end(&self) -> usize {
        self.data.len()
    }

    #[inline(always)]
    pub fn bytes(&self, off: usize, end: usize) -> &'a [u8] {
        &self.data[off..end]
    }

    #[inline(always)]
    fn byte(&mut self) -> Read<u8> {
        match self.data.get(self.pos) {
            Some(&byte) => {
                self.pos += 1;
                Ok(byte)
            }
            None => fault(self.pos, Cause::Truncated),
        }
    }

    /// A field's tag. Longer than needed is allowed, up to five bytes.
    #[inline(always)]
    pub fn tag(&mut self) -> Read<u32> {
        let start = self.pos;
        let first = self.byte()?;
        let tag = if first < 0x80 {
            u32::from(first)
        } else {
            self.long_u32(first, Cause::Tag)?
        };
        if tag < 8 {
            return fault(start, Cause::Tag);
        }
        Ok(tag)
    }

    #[inline(never)]
    fn long_u32(&mut self, first: u8, cause: Cause) -> Read<u32> {
        let start = self.pos - 1;
        let mut value = u64::from(first & 0x7f);
        for shift in (7..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).or_else(|_| fault(start, cause));
            }
        }
        fault(start, cause)
    }

    /// Up to ten bytes; bits beyond the 64th are dropped.
    #[inline(always)]
    pub fn varint(&mut self) -> Read<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        self.long_varint(first)
    }

    #[inline(never)]
    fn long_varint(&mut self, first: u8) -> Read<u64> {
        let start = self.pos - 1;
        let mut value = u64::from(first & 0x7f);
        for shift in (7..70).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        fault(start, Cause::Varint)
    }

    #[inline(always)]
    pub fn fixed64(&mut self) -> Read<u64> {
        match self
            .data
            .get(self.pos..)
            .and_then(|rest| rest.first_chunk::<8>())
        {
            Some(bytes) => {
                self.pos += 8;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => fault(self.pos, Cause::Truncated),
        }
    }

    #[inline]
    pub fn fixed32(&mut self) -> Read<u32> {
        match self
            .data
            .get(self.pos..)
            .and_then(|rest| rest.first_chunk::<4>())
        {
            Some(bytes) => {
                self.pos += 4;
                Ok(u32::from_le_bytes(*bytes))
            }
            None => fault(self.pos, Cause::Truncated),
        }
    }

    /// The content of a length-delimited field, as where it begins and ends; the reader stands behind it.
    #[inline(always)]
    pub fn sized(&mut self) -> Read<(usize, usize)> {
        let at = self.pos;
        let first = self.byte()?;
        let size = if first < 0x80 {
            usize::from(first)
        } else {
            self.long_u32(first, Cause::Varint)? as usize
        };
        let start = self.pos;
        if size > self.data.len() - start {
            return fault(at, Cause::Truncated);
        }
        self.pos = start + size;
        Ok((start, self.pos))
    }

    /// The content of a length-delimited field as a message.
    #[inline(always)]
    pub fn message(&mut self) -> Read<Reader<'a>> {
        let (start, end) = self.sized()?;
        Ok(Reader::new(self.data, start, end))
    }

    /// Steps over the field whose tag was just read.
    #[inline(never)]
    pub fn skip(&mut self, tag: u32, depth: u32) -> Read<()> {
        match tag & 7 {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed64().map(drop),
            SIZED => self.sized().map(drop),
            FIXED32 => self.fixed32().map(drop),
            GROUP => self.group(tag, depth),
            GROUP_END => fault(self.pos, Cause::GroupEnd),
            unknown => fault(self.pos, Cause::WireType(unknown)),
        }
    }

    /// Recursion ends where `depth` does.
    fn group(&mut self, begin: u32, depth: u32) -> Read<()> {
        let depth = deeper(depth, self.pos)?;
        loop {
            let inner = self.tag()?;
            if inner & 7 == GROUP_END {
                if inner >> 3 == begin >> 3 {
                    return Ok(());
                }
                return fault(self.pos, Cause::GroupEnd);
            }
            self.skip(inner, depth)?;
        }
    }
}

/// How many more levels may follow inside a message that stands where `depth` more were allowed.
#[inline]
pub fn deeper(depth: u32, at: usize) -> Read<u32> {
    match depth.checked_sub(1) {
        Some(left) => Ok(left),
        None => fault(at, Cause::TooDeep),
    }
}

/// Appends a varint.
#[inline(always)]
pub fn put_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0x3fff => out.extend_from_slice(&[value as u8 | 0x80, (value >> 7) as u8]),
        _ => put_long_varint(out, value),
    }
}

#[inline(never)]
fn put_long_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes a varint takes.
#[inline]
pub fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(bytes: &[u8]) -> Read<u64> {
        Reader::new(bytes, 0, bytes.len()).varint()
    }

    #[test]
    fn varints_are_written_as_they_are_read() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value));
                assert_eq!(varint(&out), Ok(value));
            }
        }
    }

    #[test]
    fn varints_end_after_ten_bytes() {
        assert_eq!(varint(&[0x80, 0x00]), Ok(0));
        assert_eq!(varint(&[&[0xff; 9][..], &[0x7f]].concat()), Ok(u64::MAX));
        assert_eq!(varint(&[0xff; 10]).unwrap_err().cause, Cause::Varint);
        assert_eq!(varint(&[0x80]).unwrap_err().cause, Cause::Truncated);
    }

    #[test]
    fn tags_have_five_bytes_and_a_number() {
        let tag = |bytes: &[u8]| Reader::new(bytes, 0, bytes.len()).tag();
        assert_eq!(tag(&[0x8a, 0x80, 0x80, 0x80, 0x00]), Ok(10));
        for bad in [&[0x07][..], &[0x80; 6], &[0x8a, 0x80, 0x80, 0x80, 0x10]] {
            assert_eq!(tag(bad).unwrap_err().cause, Cause::Tag);
        }
    }

    #[test]
    fn groups_are_skipped_whole() {
        let skip = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes, 0, bytes.len());
            let tag = reader.tag()?;
            reader.skip(tag, DEPTH).map(|()| reader.pos)
        };
        assert_eq!(skip(&[0x23, 0x2b, 0x08, 0x01, 0x2c, 0x24, 0x08]), Ok(6));
        assert_eq!(skip(&[0x23, 0x2c]).unwrap_err().cause, Cause::GroupEnd);
        assert_eq!(skip(&[0x24]).unwrap_err().cause, Cause::GroupEnd);
        assert_eq!(skip(&[0x26]).unwrap_err().cause, Cause::WireType(6));
        assert_eq!(skip(&[0x23; 101]).unwrap_err().cause, Cause::TooDeep);
    }
}
