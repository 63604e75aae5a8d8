//! The values of an attribute as columns: a place for each row, whether or not it has the attribute.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::packed;
use crate::records::{value_type, Attribute, ATTRIBUTE_SIZE};

/// Which kinds of values there were.
const TEXTS: u8 = 1;
const NUMBERS: u8 = 2;
const TRUTHS: u8 = 4;

/// Offsets, lengths, numbers, and which of them there were.
type Columns<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    u8,
);

/// Spread attribute records (`batch.ATTRIBUTE`) over rows: strings as offsets and lengths (u32, cut to
/// `longest` bytes), INT and DOUBLE as f64 (NaN: none). Of several records of a row the last one counts; one
/// beyond the rows is none.
#[pyfunction]
pub fn sent_values<'py>(
    py: Python<'py>,
    records: &[u8],
    rows: usize,
    longest: u32,
) -> Columns<'py> {
    let mut offs = vec![0; rows];
    let mut lens = vec![0; rows];
    let mut numbers = vec![f64::NAN; rows];
    let mut found = 0;
    for record in records
        .chunks_exact(ATTRIBUTE_SIZE)
        .filter_map(<[u8]>::first_chunk)
    {
        let (row, value, content, kind) = Attribute::sent_of(record);
        let row = row as usize;
        if row >= rows {
            continue;
        }
        (offs[row], lens[row], numbers[row]) = (0, 0, f64::NAN);
        match kind {
            value_type::STRING => {
                found |= TEXTS;
                offs[row] = content.off;
                lens[row] = content.len.min(longest);
            }
            value_type::INT => {
                found |= NUMBERS;
                numbers[row] = value as f64;
            }
            value_type::DOUBLE => {
                found |= NUMBERS;
                numbers[row] = f64::from_bits(value as u64);
            }
            value_type::BOOL => found |= TRUTHS,
            _ => {}
        }
    }
    (
        PyBytes::new(py, &packed(&offs, u32::to_le_bytes)),
        PyBytes::new(py, &packed(&lens, u32::to_le_bytes)),
        PyBytes::new(py, &packed(&numbers, f64::to_le_bytes)),
        found,
    )
}
