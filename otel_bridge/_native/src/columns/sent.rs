//! The values of an attribute as columns: a place for each row, whether or not it has the attribute.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::records::{value_type, ATTRIBUTE_SIZE};

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
        let record: &[u8; ATTRIBUTE_SIZE] = record;
        let row = word(record, 8) as usize;
        if row >= rows {
            continue;
        }
        (offs[row], lens[row], numbers[row]) = (0, 0, f64::NAN);
        let value = u64::from(word(record, 0)) | u64::from(word(record, 4)) << 32;
        match record[38] {
            value_type::STRING => {
                found |= TEXTS;
                offs[row] = word(record, 12);
                lens[row] = word(record, 16).min(longest);
            }
            value_type::INT => {
                found |= NUMBERS;
                numbers[row] = value as i64 as f64;
            }
            value_type::DOUBLE => {
                found |= NUMBERS;
                numbers[row] = f64::from_bits(value);
            }
            value_type::BOOL => found |= TRUTHS,
            _ => {}
        }
    }
    let bytes =
        |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let numbers: Vec<u8> = numbers
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    (
        PyBytes::new(py, &bytes(&offs)),
        PyBytes::new(py, &bytes(&lens)),
        PyBytes::new(py, &numbers),
        found,
    )
}

fn word(record: &[u8; ATTRIBUTE_SIZE], at: usize) -> u32 {
    record[at..]
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
