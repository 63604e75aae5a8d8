//! What a target's sources say of each span, asked in order: those that need nothing but attributes of the
//! span. `processors/enrich/targets.py` is the reference, and does the others.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::json::{JsonPaths, MALFORMED};
use super::packed;
use super::text::{first_string, int, int_parameter, Parsed};
use crate::records::{value_type, Attribute, Slice, ATTRIBUTE_SIZE};

/// Why a value cannot be used: its place in `values.REASONS`.
#[derive(Clone, Copy)]
enum Bad {
    WrongType = 0,
    NotANumber = 1,
    NotWhole = 2,
    Negative = 3,
    OutOfRange = 4,
    TooLong = 5,
    Malformed = 6,
}

const REASONS: usize = 7;

#[derive(Clone, Copy)]
enum Value {
    Text(Slice),
    Int(i64),
}

type Read = Result<Option<Value>, Bad>;

/// An attribute of a span.
struct Sent {
    value: i64,
    content: Slice,
    kind: u8,
}

/// Reads values as one type, within bounds; see `values.Reader`.
struct Reader {
    texts: bool,
    low: i64,
    high: i64,
    longest: u32,
}

/// Doubles of this size and above have no i64.
const WHOLE: f64 = 9_223_372_036_854_775_808.0;

impl Reader {
    fn sent(&self, data: &[u8], sent: &Sent) -> Read {
        match sent.kind {
            value_type::STRING => self.text(data, sent.content),
            value_type::ARRAY => match first_string(content(data, sent.content)) {
                Some((off, len)) => self.text(
                    data,
                    Slice {
                        off: sent.content.off + off as u32,
                        len: len as u32,
                    },
                ),
                None if sent.content.len > 0 => Err(Bad::WrongType),
                None => Ok(None),
            },
            value_type::INT if !self.texts => self.within(sent.value),
            value_type::DOUBLE if !self.texts => self.whole(f64::from_bits(sent.value as u64)),
            value_type::EMPTY => Ok(None),
            _ => Err(Bad::WrongType),
        }
    }

    /// An empty text is absent.
    fn text(&self, data: &[u8], text: Slice) -> Read {
        if text.len == 0 {
            return Ok(None);
        }
        if !self.texts {
            return self.parsed(int(content(data, text)));
        }
        if text.len > self.longest {
            return Err(Bad::TooLong);
        }
        Ok(Some(Value::Text(text)))
    }

    fn parsed(&self, (value, parsed): (i64, Parsed)) -> Read {
        match parsed {
            Parsed::Absent => Ok(None),
            Parsed::Ok => self.within(value),
            Parsed::NotANumber => Err(Bad::NotANumber),
            Parsed::OutOfRange => Err(Bad::OutOfRange),
        }
    }

    fn whole(&self, value: f64) -> Read {
        if value.abs() < WHOLE && value.trunc() == value {
            return self.within(value as i64);
        }
        Err(Bad::NotWhole)
    }

    fn within(&self, value: i64) -> Read {
        if (self.low..=self.high).contains(&value) {
            return Ok(Some(Value::Int(value)));
        }
        Err(if value < 0 {
            Bad::Negative
        } else {
            Bad::OutOfRange
        })
    }
}

fn content(data: &[u8], slice: Slice) -> &[u8] {
    let off = slice.off as usize;
    data.get(off..off + slice.len as usize).unwrap_or_default()
}

enum How {
    Attribute,
    JsonText(Py<JsonPaths>),
    Parameter(Vec<u8>),
    /// Not done here.
    Foreign,
}

/// One source: its columns, and the kinds of spans that it is asked for.
struct Source {
    kinds: u64,
    slots: Vec<usize>,
    how: How,
}

impl Source {
    fn read(&self, reader: &Reader, data: &[u8], slot: usize, sent: &Sent) -> Read {
        let textual = sent.kind == value_type::STRING;
        match &self.how {
            How::Attribute => reader.sent(data, sent),
            How::JsonText(paths) if textual || sent.kind == value_type::BYTES => {
                match content(data, sent.content) {
                    text @ [b'{' | b'[', ..] => match paths.get().measure(text) {
                        MALFORMED => Err(Bad::Malformed),
                        length if length < 0 => Ok(None),
                        length => reader.within(length),
                    },
                    _ => Ok(None),
                }
            }
            How::Parameter(name) if textual => {
                // The first column is the query alone, the others are URLs.
                let bare = self.slots.first() == Some(&slot);
                reader.parsed(int_parameter(content(data, sent.content), name, bare))
            }
            _ => Ok(None),
        }
    }
}

/// What one source said: its place, the rows, and their values (i64) or offsets and lengths (u32).
type Found<'py> = (
    usize,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Option<Bound<'py, PyBytes>>,
);

/// Which source is to be asked next, what was found, and how many values were bad, by reason.
type Answer<'py> = (usize, Vec<Found<'py>>, Vec<(usize, usize)>);

/// The sources of one target, in order.
///
/// `texts`: values are texts of at most `longest` bytes, else whole numbers from `low` to `high`. `sources`: for
/// each how it reads ("attribute", "json_text", "parameter", or "foreign"), the kinds of spans that it is
/// asked for (a bit each), its columns, a parameter's name, and the paths in JSON.
#[pyclass(frozen, module = "otel_bridge._native.wire")]
pub struct Sources {
    reader: Reader,
    sources: Vec<Source>,
}

type SourceArgs = (String, u64, Vec<usize>, Vec<u8>, Option<Py<JsonPaths>>);

#[pymethods]
impl Sources {
    #[new]
    fn new(
        texts: bool,
        low: i64,
        high: i64,
        longest: u32,
        sources: Vec<SourceArgs>,
    ) -> PyResult<Self> {
        let sources = sources
            .into_iter()
            .map(|(how, kinds, slots, name, paths)| {
                let how = match (how.as_str(), paths) {
                    ("attribute", _) => How::Attribute,
                    ("json_text", Some(paths)) => How::JsonText(paths),
                    ("parameter", _) => How::Parameter(name),
                    ("foreign", _) => How::Foreign,
                    (other, _) => {
                        return Err(PyValueError::new_err(format!("no way to read: {other:?}")))
                    }
                };
                Ok(Source { kinds, slots, how })
            })
            .collect::<PyResult<_>>()?;
        let reader = Reader {
            texts,
            low,
            high,
            longest,
        };
        Ok(Self { reader, sources })
    }

    /// Ask the sources from `first` on for the spans that `need` a value, one byte each.
    ///
    /// `kinds`: those of the spans, a byte each. `records`: ATTRIBUTE records, grouped as `starts` says.
    /// `aside`: places of sources that are foreign this time. Returns the place of the foreign source that is to
    /// be asked next, or how many sources there are; what was found; and how many values were bad, by reason.
    #[allow(clippy::too_many_arguments)] // what a batch consists of
    fn read<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        aside: Vec<usize>,
        data: &[u8],
        kinds: &[u8],
        records: &[u8],
        starts: &Bound<'py, PyAny>,
        need: &[u8],
    ) -> PyResult<Answer<'py>> {
        let mut need: Vec<bool> = need.iter().map(|&needs| needs != 0).collect();
        let mut missing = need.iter().filter(|&&needs| needs).count();
        let mut found = Vec::new();
        let mut bad = [0; REASONS];
        let mut next = self.sources.len();
        for (place, source) in self.sources.iter().enumerate().skip(first) {
            if missing == 0 {
                break;
            }
            let groups = groups(source, records, starts)?;
            let aside = aside.contains(&place);
            if groups.is_empty() && !source.slots.is_empty() && !aside {
                continue;
            }
            if aside || matches!(source.how, How::Foreign) {
                next = place;
                break;
            }
            let mut values = vec![None; need.len()];
            // Last to first: what was looked at last is still in the CPU's cache.
            for &(slot, group) in &groups {
                for record in group.rchunks_exact(ATTRIBUTE_SIZE) {
                    let Some(record) = record.first_chunk() else {
                        continue;
                    };
                    let (row, value, content, kind) = Attribute::sent_of(record);
                    let row = row as usize;
                    let of_kind = kinds
                        .get(row)
                        .is_some_and(|&kind| kind < 64 && source.kinds & (1 << kind) != 0);
                    if !of_kind || !need.get(row).is_some_and(|&needs| needs) {
                        continue;
                    }
                    let sent = Sent {
                        value,
                        content,
                        kind,
                    };
                    match source.read(&self.reader, data, slot, &sent) {
                        Ok(None) => {}
                        Ok(value) => {
                            values[row] = value;
                            need[row] = false;
                            missing -= 1;
                        }
                        Err(reason) => bad[reason as usize] += 1,
                    }
                }
            }
            found.extend(self.columns(py, place, &values));
        }
        let bad = bad.into_iter().enumerate().filter(|&(_, count)| count > 0);
        Ok((next, found, bad.collect()))
    }
}

impl Sources {
    fn columns<'py>(
        &self,
        py: Python<'py>,
        place: usize,
        values: &[Option<Value>],
    ) -> Option<Found<'py>> {
        let (mut rows, mut numbers, mut offs, mut lens) = (vec![], vec![], vec![], vec![]);
        for (row, value) in values.iter().enumerate() {
            match value {
                Some(Value::Int(value)) => numbers.push(*value),
                Some(Value::Text(text)) => {
                    offs.push(text.off);
                    lens.push(text.len);
                }
                None => continue,
            }
            rows.push(row as u32);
        }
        if rows.is_empty() {
            return None;
        }
        let rows = PyBytes::new(py, &packed(&rows, u32::to_le_bytes));
        Some(if self.reader.texts {
            let offs = PyBytes::new(py, &packed(&offs, u32::to_le_bytes));
            let lens = PyBytes::new(py, &packed(&lens, u32::to_le_bytes));
            (place, rows, offs, Some(lens))
        } else {
            let numbers = PyBytes::new(py, &packed(&numbers, i64::to_le_bytes));
            (place, rows, numbers, None)
        })
    }
}

/// The records of those of a source's columns that anybody has.
fn groups<'a>(
    source: &Source,
    records: &'a [u8],
    starts: &Bound<'_, PyAny>,
) -> PyResult<Vec<(usize, &'a [u8])>> {
    let mut groups = Vec::new();
    for &slot in &source.slots {
        let start: usize = starts.get_item(slot)?.extract()?;
        let end: usize = starts.get_item(slot + 1)?.extract()?;
        if let Some(group) = records.get(start * ATTRIBUTE_SIZE..end * ATTRIBUTE_SIZE) {
            if !group.is_empty() {
                groups.push((slot, group));
            }
        }
    }
    Ok(groups)
}
