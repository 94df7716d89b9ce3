//! Every case on the simulated GPU, as a test of the same name.

use std::sync::Arc;

use gpu::{Gpu, SimulatedGpu, SimulatedOptions};

fn simulated() -> Arc<dyn Gpu> {
    Arc::new(SimulatedGpu::new(SimulatedOptions { threads: 2, ..SimulatedOptions::default() }))
}

macro_rules! tests {
    ($($module:ident::$name:ident,)*) => {$(
        #[test]
        fn $name() {
            let case = selftest::find(stringify!($name)).expect("it is in the list");
            (case.run)(&simulated());
        }
    )*};
}
selftest::for_each_case!(tests);
