//! Rows with the same texts and codes get the same number: what metrics are grouped by.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::{numbers, Stretches};

/// The codes of a combination, and its texts, each with its label.
type Labels<'py> = (Bound<'py, PyBytes>, Vec<(u8, Bound<'py, PyBytes>)>);

/// Combinations of labels, numbered in the order in which they came.
#[pyclass(module = "otel_bridge._native.wire")]
#[derive(Default)]
pub struct Cells {
    ids: HashMap<Arc<[u8]>, u32, RandomState>,
    keys: Vec<Arc<[u8]>>,
}

/// Which label it is, and offsets and lengths.
type Column = (u8, PyBackedBytes, PyBackedBytes);

/// Before each text of a key: which label, and its length.
const HEAD: usize = 5;

#[pymethods]
impl Cells {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The number of each row's combination.
    ///
    /// A column is offsets and lengths into `data` with `added` behind it; an empty text is as good as none.
    /// `codes` has `width` bytes a row.
    fn assign<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        added: &[u8],
        columns: Vec<Column>,
        codes: &[u8],
        width: usize,
    ) -> Bound<'py, PyBytes> {
        let width = width.max(1);
        let mut columns: Vec<_> = columns
            .iter()
            .map(|(label, offs, lens)| (*label, numbers(offs).zip(numbers(lens))))
            .collect();
        let texts = Stretches { data, added };
        let mut key = Vec::with_capacity(256);
        let mut out = Vec::with_capacity(4 * (codes.len() / width));
        for codes in codes.chunks_exact(width) {
            key.clear();
            key.extend_from_slice(codes);
            for (label, column) in &mut columns {
                let (off, len) = column.next().unwrap_or_default();
                let text = texts.get(off, len);
                if !text.is_empty() {
                    let [a, b, c, d] = (text.len() as u32).to_le_bytes();
                    key.extend_from_slice(&[*label, a, b, c, d]);
                    key.extend_from_slice(text);
                }
            }
            out.extend_from_slice(&self.number(&key).to_le_bytes());
        }
        PyBytes::new(py, &out)
    }

    /// The codes of a combination, then its texts, each with its label.
    fn labels<'py>(&self, py: Python<'py>, id: usize, width: usize) -> Option<Labels<'py>> {
        let (codes, mut rest) = self.keys.get(id)?.split_at_checked(width.max(1))?;
        let mut texts = Vec::new();
        while let Some(([label, len @ ..], after)) = rest.split_first_chunk::<HEAD>() {
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            texts.push((*label, PyBytes::new(py, text)));
            rest = after;
        }
        Some((PyBytes::new(py, codes), texts))
    }

    /// Forget all; numbers begin anew.
    fn clear(&mut self) {
        *self = Self::default();
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }
}

impl Cells {
    fn number(&mut self, key: &[u8]) -> u32 {
        if let Some(id) = self.ids.get(key) {
            return *id;
        }
        let id = self.keys.len() as u32;
        let key: Arc<[u8]> = key.into();
        self.keys.push(key.clone());
        self.ids.insert(key, id);
        id
    }
}
