//! One guest's contexts, streams and allocations.
