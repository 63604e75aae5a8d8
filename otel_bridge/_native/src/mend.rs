//! Requests that cannot be read in place are rewritten first, which hardly ever happens.
//!
//! Strings that are not UTF-8 are made so: decoders downstream refuse a whole request for one bad byte.
//! An array or key-value list that came in several parts, which protobuf merges, is put together.

use crate::reader::{put_varint, tag, Read, Reader, DEPTH, FIXED64, SIZED, VARINT};
use crate::records::{value_type, Slice};
use crate::scan::Text;
use crate::splice::{splice, Edits, Misfit, Rope, Swap};

/// Fields, and what shall stand in their place.
#[derive(Default)]
pub struct Rewrite {
    fields: Vec<Slice>,
    /// The new fields, encoded, one after the other.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Rewrite {
    /// Each maximal part of a character that is none becomes one U+FFFD, as WHATWG and Python have it.
    pub fn mending(data: &[u8], broken: &[Text]) -> Self {
        let mut rewrite = Self::default();
        for text in broken {
            let content = String::from_utf8_lossy(text.content.of(data));
            rewrite.push(data, text.field, content.as_bytes());
        }
        rewrite
    }

    /// Each attribute gets one value that holds what its last parts of one type hold together.
    pub fn joining(data: &[u8], attributes: &[Slice]) -> Read<Self> {
        let mut rewrite = Self::default();
        for field in attributes {
            rewrite.push(data, *field, &joined(data, *field)?);
        }
        Ok(rewrite)
    }

    /// The request with the new fields in it.
    pub fn splice<'a>(&'a self, data: &'a [u8], rows: usize) -> Result<Rope<'a>, Misfit> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let swap = |((field, start), &end): ((&Slice, usize), &usize)| Swap {
            field: *field,
            with: &self.bytes[start..end],
        };
        let replacements = self
            .fields
            .iter()
            .zip(starts)
            .zip(&self.ends)
            .map(swap)
            .collect();
        splice(
            data,
            Edits {
                rows,
                replacements,
                ..Edits::default()
            },
        )
    }

    fn push(&mut self, data: &[u8], field: Slice, content: &[u8]) {
        // What is rewritten has a number below 16, so the low seven bits hold the whole tag.
        let tag = data[field.off as usize] & 0x7f;
        put_sized(&mut self.bytes, u32::from(tag), content);
        self.fields.push(field);
        self.ends.push(self.bytes.len());
    }
}

/// A KeyValue's content with its values made one.
fn joined(data: &[u8], field: Slice) -> Read<Vec<u8>> {
    const VALUE: u32 = tag(2, SIZED);
    const ARRAY: u32 = tag(value_type::ARRAY as u32, SIZED);
    const KVLIST: u32 = tag(value_type::KVLIST as u32, SIZED);
    let (mut out, mut value, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let mut held = 0;
    let mut outer = Reader::new(data, field.off as usize, (field.off + field.len) as usize);
    outer.tag()?;
    let mut pair = outer.message()?;
    while !pair.done() {
        let start = pair.pos;
        let outer_tag = pair.tag()?;
        if outer_tag != VALUE {
            pair.skip(outer_tag, DEPTH)?;
            out.extend_from_slice(pair.bytes(start, pair.pos));
            continue;
        }
        let mut inner = pair.message()?;
        while !inner.done() {
            let start = inner.pos;
            let inner_tag = inner.tag()?;
            let content = inner.pos;
            inner.skip(inner_tag, DEPTH)?;
            if !is_member(inner_tag) {
                value.extend_from_slice(inner.bytes(start, inner.pos));
                continue;
            }
            if inner_tag != held {
                parts.clear();
                held = inner_tag;
            }
            if matches!(inner_tag, ARRAY | KVLIST) {
                let part = Reader::new(data, content, inner.pos).message()?;
                parts.extend_from_slice(part.bytes(part.pos, part.end()));
            }
        }
    }
    put_sized(&mut value, held, &parts);
    put_sized(&mut out, VALUE, &value);
    Ok(out)
}

/// Whether a field belongs to AnyValue's oneof.
fn is_member(found: u32) -> bool {
    let wire_type = match (found >> 3) as u8 {
        value_type::STRING | value_type::ARRAY | value_type::KVLIST | value_type::BYTES => SIZED,
        value_type::BOOL | value_type::INT => VARINT,
        value_type::DOUBLE => FIXED64,
        _ => return false,
    };
    found >> 3 <= u32::from(value_type::BYTES) && found & 7 == wire_type
}

fn put_sized(out: &mut Vec<u8>, tag: u32, content: &[u8]) {
    put_varint(out, u64::from(tag));
    put_varint(out, content.len() as u64);
    out.extend_from_slice(content);
}
