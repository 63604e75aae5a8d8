//! Values added to the buckets of their series: what every span does to every metric that it is in.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{numbers, packed};

/// The series that takes what exceeds the limit.
const OVERFLOW: u32 = 0;
const UNKNOWN: u32 = u32::MAX;

/// Cells that have no series yet; values that were negative, or too large; those that overflowed; and where a
/// worst value was taken, a u32 each for the bucket (of all series) and the row.
type Outcome<'py> = (Vec<u32>, usize, usize, usize, Bound<'py, PyBytes>);

/// From cells to the series of one metric.
#[pyclass(module = "otel_bridge._native.wire")]
#[derive(Default)]
pub struct SeriesOfCells {
    series: Vec<u32>,
}

#[pymethods]
impl SeriesOfCells {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn set(&mut self, cell: usize, series: u32) {
        if cell >= self.series.len() {
            self.series.resize(2 * (cell + 1), UNKNOWN);
        }
        self.series[cell] = series;
    }

    /// Cells of these series have none any more.
    fn forget(&mut self, series: Vec<u32>) {
        let last = series.iter().copied().max().unwrap_or_default() as usize;
        let mut gone = vec![false; last + 1];
        for one in series {
            gone[one as usize] = true;
        }
        for one in &mut self.series {
            if gone.get(*one as usize) == Some(&true) {
                *one = UNKNOWN;
            }
        }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        size_of_val(self.series.as_slice())
    }
}

/// Sums and buckets of all series of one metric, and the worst recent value of each bucket.
#[pyclass(module = "otel_bridge._native.wire")]
pub struct Buckets {
    bounds: Vec<f64>,
    sums: Vec<f64>,
    /// When each was observed last.
    last: Vec<f64>,
    counts: Vec<u64>,
    /// Empty where no exemplars are kept; negative where there is none.
    worst: Vec<f64>,
    seen: Vec<f64>,
    exemplars: bool,
}

#[pymethods]
impl Buckets {
    #[new]
    fn new(bounds: Vec<f64>, exemplars: bool) -> Self {
        Self {
            bounds,
            sums: Vec::new(),
            last: Vec::new(),
            counts: Vec::new(),
            worst: Vec::new(),
            seen: Vec::new(),
            exemplars,
        }
    }

    /// Have room for so many series.
    fn grow(&mut self, rows: usize) {
        let buckets = rows * self.width();
        self.sums.resize(rows, 0.0);
        self.last.resize(rows, 0.0);
        self.counts.resize(buckets, 0);
        if self.exemplars {
            self.worst.resize(buckets, f64::NEG_INFINITY);
            self.seen.resize(buckets, 0.0);
        }
    }

    /// Begin series anew.
    fn clear(&mut self, rows: Vec<usize>) {
        let width = self.width();
        let known = self.sums.len();
        for row in rows.into_iter().filter(|row| *row < known) {
            let buckets = row * width..(row + 1) * width;
            self.sums[row] = 0.0;
            self.last[row] = 0.0;
            self.counts[buckets.clone()].fill(0);
            if self.exemplars {
                self.worst[buckets.clone()].fill(f64::NEG_INFINITY);
                self.seen[buckets].fill(0.0);
            }
        }
    }

    /// Add the values of the rows that a mask picks to the series of their cells; NaN is no value.
    ///
    /// `mask` has a byte a row, `cells` a u32, `values` an f64. A worst value older than `oldest` gives way to
    /// any other. When a cell has no series, nothing is added, and such cells are told.
    #[allow(clippy::too_many_arguments)]
    fn observe<'py>(
        &mut self,
        py: Python<'py>,
        mask: &[u8],
        cells: &[u8],
        values: &[u8],
        table: &SeriesOfCells,
        largest: f64,
        now: f64,
        oldest: f64,
    ) -> PyResult<Outcome<'py>> {
        let mut unknown = Vec::new();
        let mut places = Vec::with_capacity(mask.len());
        let (mut negative, mut too_large, mut overflowed) = (0, 0, 0);
        let rows = mask.iter().zip(numbers(cells)).zip(floats(values));
        for (row, ((picked, cell), value)) in rows.enumerate() {
            if *picked == 0 || value.is_nan() {
                continue;
            }
            if value < 0.0 {
                negative += 1;
            } else if value > largest {
                too_large += 1;
            } else {
                match table.series.get(cell as usize) {
                    None | Some(&UNKNOWN) => unknown.push(cell),
                    Some(series) => {
                        overflowed += usize::from(*series == OVERFLOW);
                        places.push((row as u32, *series as usize, value));
                    }
                }
            }
        }
        if !unknown.is_empty() {
            unknown.sort_unstable();
            unknown.dedup();
            return Ok((unknown, 0, 0, 0, PyBytes::new(py, &[])));
        }
        if let Some((_, series, _)) = places.iter().find(|place| place.1 >= self.sums.len()) {
            let rows = self.sums.len();
            return Err(PyValueError::new_err(format!(
                "series {series} of {rows} rows"
            )));
        }
        let mut taken = Vec::new();
        for (row, series, value) in places {
            self.last[series] = now;
            self.sums[series] += value;
            let bucket =
                series * self.width() + self.bounds.partition_point(|bound| *bound < value);
            self.counts[bucket] += 1;
            if self.exemplars && (value > self.worst[bucket] || self.seen[bucket] < oldest) {
                self.worst[bucket] = value;
                self.seen[bucket] = now;
                taken.extend_from_slice(&(bucket as u32).to_le_bytes());
                taken.extend_from_slice(&row.to_le_bytes());
            }
        }
        let taken = PyBytes::new(py, &taken);
        Ok((unknown, negative, too_large, overflowed, taken))
    }

    /// When each series was observed last (f64).
    fn last<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &packed(&self.last, f64::to_le_bytes))
    }

    /// Sums (f64), counts (u64, a column a bucket), worst values (f64, the same, or none).
    fn read<'py>(&self, py: Python<'py>) -> [Bound<'py, PyBytes>; 3] {
        [
            PyBytes::new(py, &packed(&self.sums, f64::to_le_bytes)),
            PyBytes::new(py, &packed(&self.counts, u64::to_le_bytes)),
            PyBytes::new(py, &packed(&self.worst, f64::to_le_bytes)),
        ]
    }

    #[getter]
    fn nbytes(&self) -> usize {
        8 * (self.sums.len() + self.last.len() + self.counts.len() + 2 * self.worst.len())
    }
}

impl Buckets {
    /// Buckets of a series.
    fn width(&self) -> usize {
        self.bounds.len() + 1
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes
        .chunks_exact(8)
        .filter_map(<[u8]>::first_chunk)
        .map(|value| f64::from_le_bytes(*value))
}
