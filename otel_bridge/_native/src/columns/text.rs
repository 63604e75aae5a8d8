//! Numbers and parameters read out of texts.

use memchr::memchr;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::any_value::{string_of, Fields, Payload};
use super::{Match, Slices, TEXT};

/// How reading a number went; the numbers are shared with `columns.Parsed`.
#[derive(Clone, Copy)]
pub enum Parsed {
    Absent = 0,
    Ok = 1,
    NotANumber = 2,
    OutOfRange = 3,
}

type Columns<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Whole numbers: i64 values and how each went. A fraction of zeros is allowed, blanks around are too.
#[pyfunction]
pub fn parse_int<'py>(py: Python<'py>, data: &[u8], offs: &[u8], lens: &[u8]) -> Columns<'py> {
    columns(py, Slices { data, offs, lens }, |text| {
        let (value, parsed) = int(text);
        (value.to_le_bytes(), parsed)
    })
}

/// Finite numbers: f64 values and how each went; with `durations` also "1.2ms", in seconds.
#[pyfunction]
pub fn parse_double<'py>(
    py: Python<'py>,
    data: &[u8],
    offs: &[u8],
    lens: &[u8],
    durations: bool,
) -> Columns<'py> {
    columns(py, Slices { data, offs, lens }, |text| {
        let (value, parsed) = double(text, durations);
        (value.to_le_bytes(), parsed)
    })
}

/// The first occurrence of a query parameter; escaped where percent signs or pluses stand in it.
#[pyfunction]
pub fn query_param<'py>(
    py: Python<'py>,
    data: &[u8],
    offs: &[u8],
    lens: &[u8],
    name: &[u8],
    bare: bool,
) -> Bound<'py, PyBytes> {
    let slices = Slices { data, offs, lens };
    let mut out = Vec::with_capacity(slices.len() * 12);
    for (off, text) in slices.iter() {
        let found = parameter(text, name, bare).map_or_else(Match::default, |(at, len)| Match {
            off: (off + at) as u32,
            len: len as u32,
            kind: TEXT,
            escaped: is_escaped(&text[at..at + len]),
        });
        found.write(&mut out);
    }
    PyBytes::new(py, &out)
}

/// `query_param` read as whole numbers: i64 values and how each went.
#[pyfunction]
pub fn query_int<'py>(
    py: Python<'py>,
    data: &[u8],
    offs: &[u8],
    lens: &[u8],
    name: &[u8],
    bare: bool,
) -> Columns<'py> {
    columns(py, Slices { data, offs, lens }, |text| {
        let (value, parsed) = int_parameter(text, name, bare);
        (value.to_le_bytes(), parsed)
    })
}

/// A query parameter of one text, decoded and read as a whole number.
pub fn int_parameter(text: &[u8], name: &[u8], bare: bool) -> (i64, Parsed) {
    match parameter(text, name, bare) {
        None => (0, Parsed::Absent),
        Some((at, len)) if is_escaped(&text[at..at + len]) => {
            int(&percent_decoded(&text[at..at + len]))
        }
        Some((at, len)) => int(&text[at..at + len]),
    }
}

/// The first string of each ArrayValue message.
#[pyfunction]
pub fn first_text<'py>(
    py: Python<'py>,
    data: &[u8],
    offs: &[u8],
    lens: &[u8],
) -> Bound<'py, PyBytes> {
    let slices = Slices { data, offs, lens };
    let mut out = Vec::with_capacity(slices.len() * 12);
    for (off, message) in slices.iter() {
        let found = first_string(message).map_or_else(Match::default, |(at, len)| Match {
            off: (off + at) as u32,
            len: len as u32,
            kind: TEXT,
            escaped: false,
        });
        found.write(&mut out);
    }
    PyBytes::new(py, &out)
}

/// Whether pairs of texts are the same but for ASCII case; one byte a pair.
#[pyfunction]
pub fn same_text<'py>(
    py: Python<'py>,
    data: &[u8],
    offs: &[u8],
    lens: &[u8],
    other_offs: &[u8],
    other_lens: &[u8],
) -> Bound<'py, PyBytes> {
    let ours = Slices { data, offs, lens };
    let theirs = Slices {
        data,
        offs: other_offs,
        lens: other_lens,
    };
    let same: Vec<u8> = ours
        .iter()
        .zip(theirs.iter())
        .map(|((_, one), (_, other))| u8::from(one.eq_ignore_ascii_case(other)))
        .collect();
    PyBytes::new(py, &same)
}

/// Where the first string of an ArrayValue message stands in it, and its length.
pub fn first_string(message: &[u8]) -> Option<(usize, usize)> {
    for field in Fields(message) {
        if let (1, Payload::Bytes(value)) = field.ok()? {
            if let Some(text) = string_of(value).ok()? {
                // `text` is a part of `message`, so their distance is its offset.
                let at = text.as_ptr() as usize - message.as_ptr() as usize;
                return Some((at, text.len()));
            }
        }
    }
    None
}

fn columns<'py>(
    py: Python<'py>,
    slices: Slices<'_>,
    read: impl Fn(&[u8]) -> ([u8; 8], Parsed),
) -> Columns<'py> {
    let mut values = Vec::with_capacity(slices.len() * 8);
    let mut states = Vec::with_capacity(slices.len());
    for (_, text) in slices.iter() {
        let (value, parsed) = read(text);
        values.extend_from_slice(&value);
        states.push(parsed as u8);
    }
    (PyBytes::new(py, &values), PyBytes::new(py, &states))
}

/// A whole number.
pub fn int(text: &[u8]) -> (i64, Parsed) {
    let text = text.trim_ascii();
    if text.is_empty() {
        return (0, Parsed::Absent);
    }
    let whole = match memchr(b'.', text) {
        Some(dot) if text[dot + 1..].iter().all(|&byte| byte == b'0') => &text[..dot],
        Some(_) => return (0, Parsed::NotANumber),
        None => text,
    };
    let digits = whole
        .strip_prefix(b"-")
        .or_else(|| whole.strip_prefix(b"+"))
        .unwrap_or(whole);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return (0, Parsed::NotANumber);
    }
    match std::str::from_utf8(whole)
        .ok()
        .and_then(|whole| whole.parse().ok())
    {
        Some(value) => (value, Parsed::Ok),
        None => (0, Parsed::OutOfRange),
    }
}

/// Units of Rust's Duration in debug form, and Go's; longer ones first where one ends another.
const UNITS: [(&[u8], f64); 6] = [
    (b"ns", 1e9),
    (b"us", 1e6),
    (b"\xc2\xb5s", 1e6),
    (b"\xce\xbcs", 1e6),
    (b"ms", 1e3),
    (b"s", 1.0),
];

fn double(text: &[u8], durations: bool) -> (f64, Parsed) {
    let mut text = text.trim_ascii();
    if text.is_empty() {
        return (0.0, Parsed::Absent);
    }
    let mut divisor = 1.0;
    if durations {
        for (unit, a_second) in UNITS {
            if let Some(number) = text.strip_suffix(unit) {
                (text, divisor) = (number, a_second);
                break;
            }
        }
    }
    // Rust also reads "inf", "nan" and their kin, which are no measurement.
    if !text
        .iter()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
    {
        return (0.0, Parsed::NotANumber);
    }
    match std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<f64>().ok())
    {
        Some(value) if value.is_finite() => (value / divisor, Parsed::Ok),
        Some(_) => (0.0, Parsed::OutOfRange),
        None => (0.0, Parsed::NotANumber),
    }
}

/// Where the first value of a parameter stands in a URL, or in a bare query.
fn parameter(text: &[u8], name: &[u8], bare: bool) -> Option<(usize, usize)> {
    let text = &text[..memchr(b'#', text).unwrap_or(text.len())];
    let mut at = match memchr(b'?', text) {
        Some(0) => 1,
        _ if bare => 0,
        Some(mark) => mark + 1,
        None => return None,
    };
    while at <= text.len() {
        let end = memchr(b'&', &text[at..]).map_or(text.len(), |len| at + len);
        let pair = &text[at..end];
        let equals = memchr(b'=', pair).unwrap_or(pair.len());
        if is_name(&pair[..equals], name) {
            let start = (equals + 1).min(pair.len());
            return Some((at + start, pair.len() - start));
        }
        at = end + 1;
    }
    None
}

fn is_name(raw: &[u8], name: &[u8]) -> bool {
    raw == name || (is_escaped(raw) && percent_decoded(raw) == name)
}

fn is_escaped(raw: &[u8]) -> bool {
    raw.iter().any(|byte| matches!(byte, b'%' | b'+'))
}

/// Percent signs without two hexadecimal digits stay as they are, as browsers and Python have it.
fn percent_decoded(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let hex = raw
            .get(at + 1..at + 3)
            .filter(|hex| hex.iter().all(u8::is_ascii_hexdigit));
        match (raw[at], hex) {
            (b'%', Some(hex)) => {
                let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
                out.push(digit(hex[0]) << 4 | digit(hex[1]));
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (other, _) => out.push(other),
        }
        at += 1;
    }
    out
}
