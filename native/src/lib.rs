//! Compiled kernels and gRPC transport of LedgerMQ. Nothing here decides: no role, offset, lease, right or policy.
//! Each function has a Python twin in the product, and tests hold the two equal.

use pyo3::prelude::*;

mod audit_scan;
mod entries;
mod front;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_submodule(&entries::module(module.py())?)?;
    module.add_submodule(&audit_scan::module(module.py())?)?;
    module.add_submodule(&front::module(module.py())?)?;
    Ok(())
}
