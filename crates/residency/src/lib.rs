//! Carries out what the pool decides.
