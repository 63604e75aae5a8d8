//! What recent spans were and said, so that their descendants and counterparts can inherit it.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{Match, Slices, TEXT};

type TraceId = [u8; 16];
type SpanId = [u8; 8];

/// A longer value is not kept: it is no model name, and memory here is bounded by counts.
const MAX_VALUE: usize = 512;

struct Span {
    parent: SpanId,
    value: Option<Box<[u8]>>,
}

/// One half of the memory.
#[derive(Default)]
struct Generation {
    spans: HashMap<(TraceId, SpanId), Span>,
    ids: HashMap<Box<[u8]>, Box<[u8]>>,
}

/// Spans by id and values by response id, of which the oldest are forgotten.
///
/// Two generations hold half of the capacity each: when the younger is full, the older is dropped.
#[pyclass(module = "otel_bridge._native.wire")]
pub struct Lineage {
    half: usize,
    young: Generation,
    old: Generation,
}

impl Lineage {
    fn make_room(&mut self) {
        if self.young.spans.len() >= self.half || self.young.ids.len() >= self.half {
            // Swapped and emptied, not replaced: the tables keep their room.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.spans.clear();
            self.young.ids.clear();
        }
    }

    fn span(&self, key: &(TraceId, SpanId)) -> Option<&Span> {
        self.young
            .spans
            .get(key)
            .or_else(|| self.old.spans.get(key))
    }

    fn id(&self, id: &[u8]) -> Option<&[u8]> {
        self.young
            .ids
            .get(id)
            .or_else(|| self.old.ids.get(id))
            .map(AsRef::as_ref)
    }

    fn inherited(&self, trace: TraceId, parent: SpanId, hops: usize) -> Option<&[u8]> {
        let mut at = parent;
        for _ in 0..hops {
            if at == SpanId::default() {
                return None;
            }
            let span = self.span(&(trace, at))?;
            if let Some(value) = &span.value {
                return Some(value);
            }
            at = span.parent;
        }
        None
    }

    /// The value under a request's id: as it is, or without the number that an engine put behind it.
    fn paired(&self, id: &[u8]) -> Option<&[u8]> {
        self.id(id).or_else(|| {
            let digits = id
                .iter()
                .rev()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let head = &id[..id.len() - digits];
            let base = head
                .strip_suffix(b"-")
                .or_else(|| head.strip_suffix(b"_"))?;
            if digits == 0 {
                return None;
            }
            self.id(base)
        })
    }
}

#[pymethods]
impl Lineage {
    #[new]
    fn new(capacity: usize) -> Self {
        Self {
            half: (capacity / 2).max(1),
            young: Generation::default(),
            old: Generation::default(),
        }
    }

    /// Keep spans: their ids back to back, and for each a value (empty: none).
    fn remember(
        &mut self,
        traces: &[u8],
        spans: &[u8],
        parents: &[u8],
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) {
        let values = Slices { data, offs, lens };
        let ids = chunks::<16>(traces)
            .zip(chunks::<8>(spans))
            .zip(chunks::<8>(parents));
        for (((trace, span), parent), (_, value)) in ids.zip(values.iter()) {
            self.make_room();
            let value = (1..=MAX_VALUE).contains(&value.len()).then(|| value.into());
            self.young
                .spans
                .insert((trace, span), Span { parent, value });
        }
    }

    /// Keep values under ids.
    fn remember_ids(
        &mut self,
        data: &[u8],
        id_offs: &[u8],
        id_lens: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) {
        let ids = Slices {
            data,
            offs: id_offs,
            lens: id_lens,
        };
        let values = Slices { data, offs, lens };
        for ((_, id), (_, value)) in ids.iter().zip(values.iter()) {
            if (1..=MAX_VALUE).contains(&id.len()) && (1..=MAX_VALUE).contains(&value.len()) {
                self.make_room();
                self.young.ids.insert(id.into(), value.into());
            }
        }
    }

    /// The nearest ancestor's value for each span: texts back to back, and where each stands in them.
    fn ancestors<'py>(
        &self,
        py: Python<'py>,
        traces: &[u8],
        parents: &[u8],
        hops: usize,
    ) -> Texts<'py> {
        let ids = chunks::<16>(traces).zip(chunks::<8>(parents));
        texts(
            py,
            ids.map(|(trace, parent)| self.inherited(trace, parent, hops)),
        )
    }

    /// The value kept under each id.
    fn counterparts<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        offs: &[u8],
        lens: &[u8],
    ) -> Texts<'py> {
        texts(
            py,
            Slices { data, offs, lens }
                .iter()
                .map(|(_, id)| self.paired(id)),
        )
    }

    fn __len__(&self) -> usize {
        self.young.spans.len() + self.old.spans.len()
    }
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes
        .chunks_exact(N)
        .map(|chunk| chunk.try_into().unwrap_or([0; N]))
}

type Texts<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

fn texts<'py, 'a>(py: Python<'py>, values: impl Iterator<Item = Option<&'a [u8]>>) -> Texts<'py> {
    let mut blob = Vec::new();
    let mut records = Vec::new();
    for value in values {
        let mut found = Match::default();
        if let Some(value) = value {
            found = Match {
                off: blob.len() as u32,
                len: value.len() as u32,
                kind: TEXT,
                escaped: false,
            };
            blob.extend_from_slice(value);
        }
        found.write(&mut records);
    }
    (PyBytes::new(py, &blob), PyBytes::new(py, &records))
}
