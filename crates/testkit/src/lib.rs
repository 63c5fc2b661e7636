//! Fake frontends and driver-side rings for tests.
