//! The Python extension module `bucketshuffle._core`; the only place, with its submodules, that names pyo3 or numpy.
use pyo3::prelude::*;

mod collate;

#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use super::collate::pad_rows;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
