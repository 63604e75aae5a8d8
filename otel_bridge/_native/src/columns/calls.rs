//! Which of the spans that tell of one call counts for it.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::{numbers, Stretches};

type TraceId = [u8; 16];
type Column = (PyBackedBytes, PyBackedBytes);
type SpanId = [u8; 8];
/// A span of one service, the service as a hash.
type Key = (TraceId, SpanId, u64);

/// Longer ids are no ids; memory here is bounded by counts.
const MAX_ID: usize = 512;
/// Digits that an engine puts behind a request's id.
const MAX_SUFFIX: usize = 4;

/// A role's own bit in marks: a descendant told of the call (`UP`), the span or an ancestor did (`DOWN`).
const UP: u8 = 0;
const DOWN: u8 = 2;

const EVERY_ROLE: u8 = 0b11;
const SERVER: u8 = 2;

/// What is said of a row.
const TELLS: u8 = 1;
const FIRST_OF_CALL: u8 = 2;
const FIRST_OF_ID: u8 = 4;

#[derive(Default)]
struct Generation {
    marks: HashMap<Key, u8>,
    ids: HashSet<Box<[u8]>>,
    traces: HashSet<TraceId>,
}

/// Recent calls, in two generations that hold half of the capacity each.
#[pyclass(module = "otel_bridge._native.wire")]
pub struct Calls {
    half: usize,
    young: Generation,
    old: Generation,
    hasher: RandomState,
}

#[pymethods]
impl Calls {
    #[new]
    fn new(capacity: usize) -> Self {
        Self {
            half: (capacity / 2).max(1),
            young: Generation::default(),
            old: Generation::default(),
            hasher: RandomState::new(),
        }
    }

    /// For each span whether it tells of a call that no other told of (bits; see `groups.Calls.tell`).
    ///
    /// `roles`: 0 where a span tells of none. `services` and `ids`: offsets and lengths into `data` with
    /// `added` behind it.
    #[allow(clippy::too_many_arguments)]
    fn tell<'py>(
        &mut self,
        py: Python<'py>,
        traces: &[u8],
        spans: &[u8],
        parents: &[u8],
        starts: &[u8],
        ends: &[u8],
        roles: &[u8],
        data: &[u8],
        added: &[u8],
        services: Column,
        ids: Column,
    ) -> Bound<'py, PyBytes> {
        let mut said = vec![0; roles.len()];
        let nothing = roles.iter().all(|role| *role == 0);
        if nothing && self.young.traces.is_empty() && self.old.traces.is_empty() {
            return PyBytes::new(py, &said);
        }
        let texts = Stretches { data, added };
        let column = |(offs, lens): &Column| -> Vec<(u32, u32)> {
            numbers(offs).zip(numbers(lens)).collect()
        };
        let (services, ids) = (column(&services), column(&ids));
        let text = |column: &[(u32, u32)], row: usize| {
            let (off, len) = column.get(row).copied().unwrap_or_default();
            texts.get(off, len)
        };
        for (row, role) in roles.iter().enumerate() {
            if *role != 0 {
                self.make_room();
                self.young.traces.insert(id(traces, row));
            }
        }
        let mut order: Vec<usize> = (0..roles.len())
            .filter(|row| self.knows(&id(traces, *row)))
            .collect();
        // A child ends before its parent, and begins after it.
        order.sort_by_key(|row| (time(ends, *row), std::cmp::Reverse(time(starts, *row))));
        let mut here: HashMap<Box<[u8]>, usize> = HashMap::new();
        for row in order {
            let role = roles[row];
            let service = self.hasher.hash_one(text(&services, row));
            let (trace, span, parent) = (id(traces, row), id(spans, row), id(parents, row));
            if !self.settle(trace, span, parent, service, role) {
                continue;
            }
            said[row] = TELLS | FIRST_OF_CALL | FIRST_OF_ID;
            let name = text(&ids, row);
            if !(1..=MAX_ID).contains(&name.len()) {
                continue;
            }
            if !self.fresh(id_key(FIRST_OF_ID, role, service, name)) {
                said[row] &= !FIRST_OF_ID;
            }
            let call = id_key(FIRST_OF_CALL, role, service, call_of(role, name));
            if let Some(earlier) = here.get_mut(&call) {
                // The last of a call's spans in a request stands for it: the call ended with it.
                said[*earlier] &= !FIRST_OF_CALL;
                *earlier = row;
            } else if self.fresh(call.clone()) {
                here.insert(call, row);
            } else {
                said[row] &= !FIRST_OF_CALL;
            }
        }
        PyBytes::new(py, &said)
    }

    fn __len__(&self) -> usize {
        self.young.marks.len() + self.old.marks.len()
    }
}

impl Calls {
    fn make_room(&mut self) {
        let young = &self.young;
        if young.marks.len() >= self.half
            || young.ids.len() >= self.half
            || young.traces.len() >= self.half
        {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.marks.clear();
            self.young.ids.clear();
            self.young.traces.clear();
        }
    }

    fn knows(&self, trace: &TraceId) -> bool {
        self.young.traces.contains(trace) || self.old.traces.contains(trace)
    }

    fn marks(&self, key: &Key) -> u8 {
        let young = self.young.marks.get(key).copied().unwrap_or_default();
        young | self.old.marks.get(key).copied().unwrap_or_default()
    }

    fn mark(&mut self, key: Key, bits: u8) {
        if bits != 0 && self.marks(&key) & bits != bits {
            self.make_room();
            *self.young.marks.entry(key).or_default() |= bits;
        }
    }

    /// Note a span, and say whether it tells of a call that neither a descendant nor an ancestor told of.
    fn settle(
        &mut self,
        trace: TraceId,
        span: SpanId,
        parent: SpanId,
        service: u64,
        role: u8,
    ) -> bool {
        let own = (trace, span, service);
        let above = (trace, parent, service);
        let root = parent == SpanId::default();
        let mut marks = self.marks(&own);
        if !root {
            marks |= self.marks(&above) & EVERY_ROLE << DOWN;
        }
        let tells = role != 0 && marks & (role << UP | role << DOWN) == 0;
        let down = marks & EVERY_ROLE << DOWN | if tells { role << DOWN } else { 0 };
        let up = marks & EVERY_ROLE << UP | role << UP;
        self.mark(own, down);
        if !root {
            self.mark(above, up);
        }
        tells
    }

    /// Note an id, and say whether it is new.
    fn fresh(&mut self, key: Box<[u8]>) -> bool {
        if self.old.ids.contains(&key) {
            return false;
        }
        self.make_room();
        self.young.ids.insert(key)
    }
}

fn id_key(kind: u8, role: u8, service: u64, id: &[u8]) -> Box<[u8]> {
    let mut key = Vec::with_capacity(10 + id.len());
    key.extend_from_slice(&[kind, role]);
    key.extend_from_slice(&service.to_le_bytes());
    key.extend_from_slice(id);
    key.into()
}

/// The call's id: an engine puts a number behind it for each of a call's prompts and choices.
fn call_of(role: u8, id: &[u8]) -> &[u8] {
    let digits = id
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let head = &id[..id.len() - digits];
    match head.split_last() {
        Some((b'-' | b'_', base)) if role == SERVER && (1..=MAX_SUFFIX).contains(&digits) => base,
        _ => id,
    }
}

fn id<const N: usize>(bytes: &[u8], row: usize) -> [u8; N] {
    bytes
        .get(N * row..N * (row + 1))
        .and_then(|id| id.try_into().ok())
        .unwrap_or([0; N])
}

fn time(bytes: &[u8], row: usize) -> u64 {
    u64::from_le_bytes(id(bytes, row))
}
