//! The codec towards Python: bytes in, bytes out, one crossing a batch.

use std::cell::Cell;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PySlice};

use crate::items;
use crate::mend::Rewrite;
use crate::plan;
use crate::reader::Fault;
use crate::records::{Attribute, Group, Slice, ATTRIBUTE_SIZE, SCOPE_SIZE, SPAN_SIZE};
use crate::scan::{scan as scan_bytes, Scanned};
use crate::splice::{splice as splice_bytes, words, Edits, Insert, Misfit, Rope, Swap, Values};

pyo3::import_exception!(otel_bridge.errors, MalformedRequestError);

thread_local! {
    /// What the last scan's records took: to be given memory by the system costs more than to fill it.
    static SPARE: Cell<Option<Scanned>> = const { Cell::new(None) };
}

/// More memory than this is given back after a scan.
const WORTH_KEEPING: usize = 4 * 1024 * 1024;

/// Pieces of this many bytes on average are joined by Python.
const WORTH_JOINING: usize = 4 * 1024;

/// Below this many bytes other threads lose less by waiting than by being woken: so many small spans take
/// 1 to 3 ms, and Python lets a thread run for 5.
const WORTH_RELEASING: usize = 2 * 1024 * 1024;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RECORD_SIZES", (SPAN_SIZE, SCOPE_SIZE, ATTRIBUTE_SIZE))?;
    module.add_class::<Plan>()?;
    module.add_function(wrap_pyfunction!(scan, module)?)?;
    module.add_function(wrap_pyfunction!(splice, module)?)?;
    module.add_function(wrap_pyfunction!(count_items, module)?)?;
    Ok(())
}

/// The wanted columns, compiled; a want's place is its slot.
///
/// `wants`: for each column its `model.Scope`, its key in UTF-8, and whether the key is a prefix.
/// `longer_than`: attributes with more bytes of content are wanted whatever their key; 0: none are.
/// Raises ValueError when there are more wants than slots can be numbered, or a scope is not one.
#[pyclass(frozen, module = "otel_bridge._native.wire")]
struct Plan(plan::Plan);

#[pymethods]
impl Plan {
    #[new]
    fn new(wants: Vec<(usize, Vec<u8>, bool)>, longer_than: usize) -> PyResult<Self> {
        if wants.len() >= usize::from(plan::OVERSIZED) {
            return Err(PyValueError::new_err(format!(
                "{} wanted columns, 65,534 are possible",
                wants.len()
            )));
        }
        let wants = wants
            .into_iter()
            .map(|(scope, key, prefix)| match plan::Place::ALL.get(scope) {
                Some(&place) => Ok(plan::Want { place, key, prefix }),
                None => Err(PyValueError::new_err(format!("{scope} is no model.Scope"))),
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Self(plan::Plan::new(
            &wants,
            (longer_than > 0).then_some(longer_than),
        )))
    }
}

type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<u32>,
    Vec<usize>,
    u32,
    usize,
);

/// Reads a request; other threads run meanwhile when it is large.
///
/// Returns the request (`data` itself unless strings had to be mended), SPAN records, SCOPE records,
/// ATTRIBUTE records grouped as in `Batch.attributes`, where each group begins and ends, which slots have
/// any, how many resources are numbered, and how many strings were mended. Raises MalformedRequestError, whose text says where.
#[pyfunction]
fn scan<'py>(py: Python<'py>, data: Bound<'py, PyBytes>, plan: &Plan) -> PyResult<Columns<'py>> {
    let mut data = data;
    let mut scanned = read(py, &data, plan)?;
    let mended = scanned.broken.len();
    if mended > 0 {
        let rewrite = Rewrite::mending(data.as_bytes(), &scanned.broken);
        (data, scanned) = read_again(py, &data, &scanned, &rewrite, plan)?;
    }
    if !scanned.parted.is_empty() {
        let rewrite = Rewrite::joining(data.as_bytes(), &scanned.parted).map_err(malformed)?;
        (data, scanned) = read_again(py, &data, &scanned, &rewrite, plan)?;
    }
    let (attributes, starts, present) = grouped(py, &scanned.attributes, plan.0.slots)?;
    let scopes: Vec<u8> = scanned
        .scopes
        .iter()
        .flat_map(|scope| scope.bytes())
        .collect();
    let columns = (
        data,
        PyBytes::new(py, &scanned.spans),
        PyBytes::new(py, &scopes),
        attributes,
        starts,
        present,
        scanned.resources,
        mended,
    );
    if scanned.capacity() <= WORTH_KEEPING {
        SPARE.set(Some(scanned));
    }
    Ok(columns)
}

fn read(py: Python<'_>, data: &Bound<'_, PyBytes>, plan: &Plan) -> PyResult<Scanned> {
    let bytes = data.as_bytes();
    let spare = SPARE.take().unwrap_or_default();
    let scanned = if bytes.len() >= WORTH_RELEASING {
        py.detach(|| scan_bytes(bytes, &plan.0, spare))
    } else {
        scan_bytes(bytes, &plan.0, spare)
    };
    scanned.map_err(malformed)
}

fn read_again<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    scanned: &Scanned,
    rewrite: &Rewrite,
    plan: &Plan,
) -> PyResult<(Bound<'py, PyBytes>, Scanned)> {
    let rows = scanned.spans.len() / SPAN_SIZE;
    let rope = rewrite.splice(data.as_bytes(), rows).map_err(refused)?;
    let rewritten = written(py, data, &rope)?;
    let scanned = read(py, &rewritten, plan)?;
    Ok((rewritten, scanned))
}

fn malformed(fault: Box<Fault>) -> PyErr {
    MalformedRequestError::new_err(format!("not an ExportTraceServiceRequest: {fault}"))
}

/// The records in the order of `Batch.attributes`, where each group begins, and which slots have any.
fn grouped<'py>(
    py: Python<'py>,
    attributes: &[Attribute],
    slots: usize,
) -> PyResult<(Bound<'py, PyBytes>, Vec<u32>, Vec<usize>)> {
    let group = |attribute: &Attribute| match attribute.group {
        Group::Slot => usize::from(attribute.slot),
        Group::Duplicate => slots,
        Group::Oversized => slots + 1,
    };
    let mut starts = vec![0u32; slots + 3];
    for attribute in attributes {
        starts[group(attribute) + 1] += 1;
    }
    let present = (0..slots).filter(|slot| starts[slot + 1] > 0).collect();
    for index in 1..starts.len() {
        starts[index] += starts[index - 1];
    }
    let mut next = starts.clone();
    let bytes = PyBytes::new_with(py, attributes.len() * ATTRIBUTE_SIZE, |out| {
        for attribute in attributes {
            let place = &mut next[group(attribute)];
            let off = *place as usize * ATTRIBUTE_SIZE;
            out[off..off + ATTRIBUTE_SIZE].copy_from_slice(&attribute.bytes());
            *place += 1;
        }
        Ok(())
    })?;
    Ok((bytes, starts, present))
}

type InsertArgs<'py> = (
    Bound<'py, pyo3::types::PyString>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);
type ReplacementArgs<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);

/// Works edits into a request; other threads run meanwhile when it is large.
///
/// `rows`: how many spans the request has. `gone`: one byte a span, not 0 where it is left out; empty: none
/// is. `inserts`: `batch.Insert`s and `replacements`: `batch.Replacement`s, arrays as bytes. `cuts`: ATTRIBUTE
/// records. Raises ValueError when the edits do not fit the request.
#[pyfunction]
fn splice<'py>(
    py: Python<'py>,
    data: Bound<'py, PyBytes>,
    rows: usize,
    gone: Bound<'py, PyBytes>,
    inserts: Vec<InsertArgs<'py>>,
    cuts: Vec<Bound<'py, PyBytes>>,
    replacements: Vec<ReplacementArgs<'py>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let edits = Edits {
        rows,
        gone: gone.as_bytes(),
        inserts: inserts.iter().map(insert).collect::<PyResult<_>>()?,
        cuts: cuts
            .iter()
            .flat_map(|records| cut_fields(records.as_bytes()))
            .collect(),
        replacements: replacements
            .iter()
            .map(swaps)
            .collect::<PyResult<Vec<_>>>()?
            .concat(),
    };
    let bytes = data.as_bytes();
    let rope = if bytes.len() >= WORTH_RELEASING {
        py.detach(|| splice_bytes(bytes, edits))
    } else {
        splice_bytes(bytes, edits)
    };
    written(py, &data, &rope.map_err(refused)?)
}

/// How many messages stand at the end of a path of field numbers; what cannot be read counts nothing.
#[pyfunction]
fn count_items(py: Python<'_>, data: &Bound<'_, PyBytes>, path: Vec<Vec<u32>>) -> usize {
    let bytes = data.as_bytes();
    if bytes.len() >= WORTH_RELEASING {
        py.detach(|| items::count(bytes, &path))
    } else {
        items::count(bytes, &path)
    }
}

fn insert<'a>((kind, key, rows, values, lens, blob): &'a InsertArgs<'_>) -> PyResult<Insert<'a>> {
    let (key, rows) = (key.as_bytes(), rows.as_bytes());
    let (values, lens, blob) = (values.as_bytes(), lens.as_bytes(), blob.as_bytes());
    let values = match kind.to_str()? {
        "int" => Values::Ints(values),
        "double" => Values::Doubles(values),
        "bool" => Values::Bools(values),
        "const" => Values::Const(blob),
        "slice" => Values::Slices(values, lens),
        "text" => Values::Texts(values, blob),
        "raw" => Values::Raw(values, blob),
        other => {
            return Err(PyValueError::new_err(format!(
                "no kind of insert: {other:?}"
            )))
        }
    };
    Ok(Insert { key, rows, values })
}

fn cut_fields(records: &[u8]) -> impl Iterator<Item = Slice> + '_ {
    records
        .chunks_exact(ATTRIBUTE_SIZE)
        .filter_map(|record| record.first_chunk())
        .map(Attribute::field_of)
}

fn swaps<'a>((offs, lens, sizes, blob): &'a ReplacementArgs<'_>) -> PyResult<Vec<Swap<'a>>> {
    let mut rest = blob.as_bytes();
    let mut out = Vec::with_capacity(offs.as_bytes().len() / 4);
    for ((off, len), size) in words(offs.as_bytes())
        .zip(words(lens.as_bytes()))
        .zip(words(sizes.as_bytes()))
    {
        let Some((with, after)) = rest.split_at_checked(size as usize) else {
            return Err(PyValueError::new_err(
                "a replacement's blob is shorter than its sizes",
            ));
        };
        rest = after;
        out.push(Swap {
            field: Slice { off, len },
            with,
        });
    }
    Ok(out)
}

fn written<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    rope: &Rope<'_>,
) -> PyResult<Bound<'py, PyBytes>> {
    if rope.size() >= WORTH_JOINING * rope.parts().len() {
        return joined(py, data, rope);
    }
    PyBytes::new_with(py, rope.size(), |out| {
        rope.write(out);
        Ok(())
    })
}

/// Python's own join, because `PyBytes::new_with` fills memory with zeros first.
fn joined<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    rope: &Rope<'_>,
) -> PyResult<Bound<'py, PyBytes>> {
    let whole = PyMemoryView::from(data)?;
    let parts = PyList::empty(py);
    for (bytes, off) in rope.parts() {
        match off.filter(|_| bytes.len() >= WORTH_JOINING) {
            Some(off) => {
                let stretch = PySlice::new(py, off as isize, (off + bytes.len()) as isize, 1);
                parts.append(whole.get_item(stretch)?)?;
            }
            None => parts.append(PyBytes::new(py, bytes))?,
        }
    }
    let out = PyBytes::new(py, b"").call_method1("join", (parts,))?;
    Ok(out.cast_into()?)
}

fn refused(misfit: Misfit) -> PyErr {
    PyValueError::new_err(format!("the edits do not fit the request: {misfit}"))
}
