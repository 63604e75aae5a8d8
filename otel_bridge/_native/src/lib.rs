//! The native half of the data path: OTLP bytes to columns, edits back into bytes.
//!
//! Safe Rust only: this code parses untrusted input. Every function here has a Python reference that
//! differential tests hold it to.

use pyo3::prelude::*;

mod codec;
mod columns;
pub mod items;
pub mod mend;
pub mod plan;
pub mod reader;
pub mod records;
pub mod scan;
pub mod splice;

#[pymodule]
fn wire(module: &Bound<'_, PyModule>) -> PyResult<()> {
    codec::register(module)?;
    columns::register(module)?;
    Ok(())
}
