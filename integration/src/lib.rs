//! Lab, VM runner, demo and VM tests.
