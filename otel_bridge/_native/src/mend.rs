//! Strings that are not UTF-8, made so: decoders downstream refuse a whole request for one bad byte.

use std::borrow::Cow;

use crate::reader::put_varint;
use crate::scan::Text;
use crate::splice::{splice, Edits, Misfit, Rope, Swap};

/// The mended string fields, encoded one after the other, and where each ends.
pub struct Mended {
    fields: Vec<u8>,
    ends: Vec<usize>,
}

impl Mended {
    /// Each maximal part of a character that is none becomes one U+FFFD, as WHATWG and Python have it.
    pub fn new(data: &[u8], broken: &[Text]) -> Self {
        let mut mended = Self {
            fields: Vec::new(),
            ends: Vec::with_capacity(broken.len()),
        };
        for text in broken {
            let content: Cow<str> = String::from_utf8_lossy(text.content.of(data));
            // All string fields have numbers below 16, so the low seven bits hold the whole tag.
            mended.fields.push(data[text.field.off as usize] & 0x7f);
            put_varint(&mut mended.fields, content.len() as u64);
            mended.fields.extend_from_slice(content.as_bytes());
            mended.ends.push(mended.fields.len());
        }
        mended
    }

    /// The request with the mended fields in it.
    pub fn splice<'a>(
        &'a self,
        data: &'a [u8],
        broken: &[Text],
        rows: usize,
    ) -> Result<Rope<'a>, Misfit> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let replacements = broken
            .iter()
            .zip(starts.zip(&self.ends))
            .map(|(text, (start, &end))| Swap {
                field: text.field,
                with: &self.fields[start..end],
            })
            .collect();
        splice(
            data,
            Edits {
                rows,
                gone: &[],
                inserts: Vec::new(),
                cuts: Vec::new(),
                replacements,
            },
        )
    }
}
