//! The paths of `json` over structured attribute values: ArrayValue and KeyValueList messages.

use super::json::{JsonPaths, Sum, Visit, MAX_DEPTH};

pub struct Malformed;

const ROOT: usize = 0;

/// Adds up the strings that the paths lead to in an ArrayValue or KeyValueList message.
pub fn walk(
    paths: &JsonPaths,
    message: &[u8],
    kvlist: bool,
    sum: &mut Sum,
) -> Result<(), Malformed> {
    if kvlist {
        key_values(paths, ROOT, message, 0, sum)
    } else {
        items(paths, ROOT, message, 0, sum)
    }
}

fn items(
    paths: &JsonPaths,
    node: usize,
    message: &[u8],
    depth: usize,
    sum: &mut Sum,
) -> Result<(), Malformed> {
    if depth >= MAX_DEPTH {
        return Err(Malformed);
    }
    let Some(child) = paths.items(node) else {
        return Ok(());
    };
    for field in Fields(message) {
        if let (1, Payload::Bytes(value)) = field? {
            any_value(paths, child, value, depth + 1, sum)?;
        }
    }
    Ok(())
}

fn key_values(
    paths: &JsonPaths,
    node: usize,
    message: &[u8],
    depth: usize,
    sum: &mut Sum,
) -> Result<(), Malformed> {
    if depth >= MAX_DEPTH {
        return Err(Malformed);
    }
    let mark = sum.mark();
    let mut excluded = false;
    for field in Fields(message) {
        let (1, Payload::Bytes(pair)) = field? else {
            continue;
        };
        let (key, value) = key_value(pair)?;
        let Some(value) = value else { continue };
        if paths.excludes_any() && key == b"type" {
            excluded |= string_of(value)?.is_some_and(|text| paths.excludes(text));
        }
        if let Some(child) = paths.member(node, key) {
            any_value(paths, child, value, depth + 1, sum)?;
        }
    }
    if excluded {
        sum.restore(mark);
    }
    Ok(())
}

fn any_value(
    paths: &JsonPaths,
    node: usize,
    message: &[u8],
    depth: usize,
    sum: &mut Sum,
) -> Result<(), Malformed> {
    for field in Fields(message) {
        match field? {
            (1, Payload::Bytes(text)) if paths.path(node).is_some() => sum.add(text.len()),
            (5, Payload::Bytes(array)) => items(paths, node, array, depth, sum)?,
            (6, Payload::Bytes(list)) => key_values(paths, node, list, depth, sum)?,
            _ => {}
        }
    }
    Ok(())
}

fn key_value(message: &[u8]) -> Result<(&[u8], Option<&[u8]>), Malformed> {
    let mut key: &[u8] = b"";
    let mut value = None;
    for field in Fields(message) {
        match field? {
            (1, Payload::Bytes(bytes)) => key = bytes,
            (2, Payload::Bytes(bytes)) => value = Some(bytes),
            _ => {}
        }
    }
    Ok((key, value))
}

/// The string that an AnyValue message holds.
pub fn string_of(message: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut text = None;
    for field in Fields(message) {
        match field? {
            (1, Payload::Bytes(bytes)) => text = Some(bytes),
            (2..=7, _) => text = None,
            _ => {}
        }
    }
    Ok(text)
}

pub enum Payload<'a> {
    Number,
    Bytes(&'a [u8]),
}

/// The fields of a protobuf message, in order.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn cut(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn field(&mut self) -> Option<(u64, Payload<'a>)> {
        let tag = self.varint()?;
        let payload = match tag & 7 {
            0 => self.varint().map(|_| Payload::Number),
            1 => self.cut(8).map(|_| Payload::Number),
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                self.cut(len).map(Payload::Bytes)
            }
            5 => self.cut(4).map(|_| Payload::Number),
            _ => None,
        };
        Some((tag >> 3, payload?))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Payload<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = b"";
        }
        Some(field.ok_or(Malformed))
    }
}
