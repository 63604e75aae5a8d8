//! Vectorised steps over text columns: a column is two arrays of offsets and lengths into the data.

use pyo3::prelude::*;

pub fn register(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
