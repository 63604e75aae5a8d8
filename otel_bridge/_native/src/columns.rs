//! Vectorised steps over text columns: a column is two arrays of offsets and lengths into the data.
//!
//! Columns come as little-endian u32 bytes, results go back as bytes; Python wraps both with NumPy. A
//! slice that does not lie inside the data is read as empty, so no input can cause a panic here.

mod any_value;
mod calls;
mod cells;
mod json;
mod keys;
mod lineage;
mod sent;
mod series;
mod sources;
mod text;

use pyo3::prelude::*;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<json::JsonPaths>()?;
    module.add_class::<keys::Words>()?;
    module.add_class::<keys::KeyPatterns>()?;
    module.add_class::<lineage::Lineage>()?;
    module.add_class::<cells::Cells>()?;
    module.add_class::<calls::Calls>()?;
    module.add_class::<series::SeriesOfCells>()?;
    module.add_class::<series::Buckets>()?;
    module.add_class::<sources::Sources>()?;
    module.add_function(wrap_pyfunction!(sent::sent_values, module)?)?;
    module.add_function(wrap_pyfunction!(text::parse_int, module)?)?;
    module.add_function(wrap_pyfunction!(text::parse_double, module)?)?;
    module.add_function(wrap_pyfunction!(text::query_param, module)?)?;
    module.add_function(wrap_pyfunction!(text::query_int, module)?)?;
    module.add_function(wrap_pyfunction!(text::first_text, module)?)?;
    module.add_function(wrap_pyfunction!(text::same_text, module)?)?;
    Ok(())
}

/// A column's offsets and lengths.
struct Slices<'a> {
    data: &'a [u8],
    offs: &'a [u8],
    lens: &'a [u8],
}

impl<'a> Slices<'a> {
    fn len(&self) -> usize {
        self.offs.len().min(self.lens.len()) / 4
    }

    fn iter(&self) -> impl Iterator<Item = (usize, &'a [u8])> + 'a {
        let data = self.data;
        numbers(self.offs)
            .zip(numbers(self.lens))
            .map(move |(off, len)| {
                let off = off as usize;
                (off, data.get(off..off + len as usize).unwrap_or_default())
            })
    }
}

/// Two texts as if one stood behind the other: the request, and what steps have added.
struct Stretches<'a> {
    data: &'a [u8],
    added: &'a [u8],
}

impl<'a> Stretches<'a> {
    /// A slice that lies in one of them, else nothing.
    fn get(&self, off: u32, len: u32) -> &'a [u8] {
        let (off, len) = (off as usize, len as usize);
        let (text, off) = match off.checked_sub(self.data.len()) {
            None => (self.data, off),
            Some(off) => (self.added, off),
        };
        text.get(off..off + len).unwrap_or_default()
    }
}

/// Values as bytes, one behind the other.
fn packed<T: Copy, const N: usize>(values: &[T], write: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| write(*value)).collect()
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes
        .chunks_exact(4)
        .map(|chunk| u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]))
}

/// What was found in a text: where, what it is, and whether it must be unescaped to be read.
#[derive(Clone, Copy, Default)]
struct Match {
    off: u32,
    len: u32,
    kind: u8,
    escaped: bool,
}

impl Match {
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.off.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&[self.kind, u8::from(self.escaped), 0, 0]);
    }
}

/// `Match::kind` of a text; JSON has more kinds (`json::Kind`).
const TEXT: u8 = 1;
