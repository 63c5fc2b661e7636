//! Registered host memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vram_gpu::{GpuError, GpuId, HostSpan, Pinning, RegisteredRanges};

use crate::api::{Api, check};

/// Usable in every context.
const PORTABLE: u32 = 1;

/// All registrations of a backend.
#[derive(Default)]
pub(crate) struct Registrations {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ranges: RegisteredRanges,
    spans: HashMap<u64, HostSpan>,
}

impl Registrations {
    /// How a span lies relative to registered memory.
    pub(crate) fn pinning(&self, span: &HostSpan) -> Pinning {
        self.state().ranges.pinning(span.as_ptr().addr(), span.len_bytes())
    }

    /// Registers a span for all GPUs.
    pub(crate) fn insert(&self, api: &Api, span: HostSpan, handle: u64) -> Result<(), GpuError> {
        let (start, len) = (span.as_ptr(), span.len_bytes());
        if !self.state().ranges.insert(start.addr(), len, handle) {
            let reason = "the span is empty, or part of it is already registered".to_owned();
            return Err(GpuError::Driver { call: "cuMemHostRegister", reason });
        }
        let registered = api.within(GpuId(0), |_| {
            // SAFETY: the span keeps its bytes mapped, and is kept until it has been unregistered.
            let code = unsafe { (api.symbols.mem_host_register)(start.cast::<c_void>(), len, PORTABLE) };
            check("cuMemHostRegister", code)
        });
        let mut state = self.state();
        match registered {
            Ok(()) => {
                state.spans.insert(handle, span);
            }
            Err(_) => state.ranges.remove(start.addr()),
        }
        registered
    }

    /// Ends a registration. The span is let go even if the driver refuses: it does so only when it is broken.
    pub(crate) fn remove(&self, api: &Api, handle: u64) -> Result<(), GpuError> {
        let span = self.state().spans.remove(&handle).ok_or(GpuError::BadHandle { what: "registration" })?;
        let unregistered = unregister(api, &span);
        self.state().ranges.remove(span.as_ptr().addr());
        unregistered
    }

    /// Ends every registration.
    pub(crate) fn clear(&self, api: &Api) {
        let spans = std::mem::take(&mut *self.state()).spans;
        for span in spans.values() {
            // On the way out there is nobody to tell.
            let _ = unregister(api, span);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unregister(api: &Api, span: &HostSpan) -> Result<(), GpuError> {
    api.within(GpuId(0), |_| {
        // SAFETY: the span was registered with this start, and its caller says that no copy touches it.
        let code = unsafe { (api.symbols.mem_host_unregister)(span.as_ptr().cast::<c_void>()) };
        check("cuMemHostUnregister", code)
    })
}
