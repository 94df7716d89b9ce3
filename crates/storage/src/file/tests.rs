//! File storage: what the conformance suite cannot ask for.
