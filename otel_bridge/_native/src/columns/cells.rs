//! Rows with the same texts and codes get the same number: what metrics are grouped by.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::{numbers, Stretches};

/// Combinations of labels, numbered in the order in which they came.
#[pyclass(module = "otel_bridge._native.wire")]
#[derive(Default)]
pub struct Cells {
    ids: HashMap<Arc<[u8]>, u32>,
    keys: Vec<Arc<[u8]>>,
}

type Column = (PyBackedBytes, PyBackedBytes);

#[pymethods]
impl Cells {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The number of each row's combination.
    ///
    /// A column is offsets and lengths into `data` with `added` behind it; `codes` has `width` bytes a row.
    fn assign<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        added: &[u8],
        columns: Vec<Column>,
        codes: &[u8],
        width: usize,
    ) -> Bound<'py, PyBytes> {
        let rows = codes.len() / width.max(1);
        let mut columns: Vec<_> = columns
            .iter()
            .map(|(offs, lens)| numbers(offs).zip(numbers(lens)))
            .collect();
        let texts = Stretches { data, added };
        let mut key = Vec::with_capacity(256);
        let mut out = Vec::with_capacity(4 * rows);
        for codes in codes.chunks_exact(width.max(1)) {
            key.clear();
            key.extend_from_slice(codes);
            for column in &mut columns {
                let (off, len) = column.next().unwrap_or_default();
                let text = texts.get(off, len);
                key.extend_from_slice(&(text.len() as u32).to_le_bytes());
                key.extend_from_slice(text);
            }
            out.extend_from_slice(&self.number(&key).to_le_bytes());
        }
        PyBytes::new(py, &out)
    }

    /// The codes of a combination, then its texts.
    fn labels(&self, id: usize, width: usize) -> Option<(Vec<u8>, Vec<Vec<u8>>)> {
        let (codes, mut rest) = self.keys.get(id)?.split_at_checked(width)?;
        let mut texts = Vec::new();
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            texts.push(text.to_vec());
            rest = after;
        }
        Some((codes.to_vec(), texts))
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
