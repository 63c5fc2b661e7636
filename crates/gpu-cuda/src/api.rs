//! The driver: result codes, contexts, and whether a GPU is still there.

use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUcontext, CUdevice};
use vram_gpu::{GpuError, GpuId};

use crate::symbols::{Missing, Symbols};

/// Result codes that say something about a call, and nothing about the context: invalid value, out of memory,
/// invalid device, invalid handle, not found, already and not registered, not permitted, not supported.
const ABOUT_THE_CALL: [u32; 9] = [1, 2, 101, 400, 500, 712, 713, 800, 801];
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: u32 = 600;

/// A call that failed: its name and the driver's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) call: &'static str,
    pub(crate) code: u32,
}

/// Turns a result code into a result.
pub(crate) fn check(call: &'static str, code: u32) -> Result<(), Refusal> {
    if code == 0 { Ok(()) } else { Err(Refusal { call, code }) }
}

/// A GPU's context, usable from any thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) CUcontext);

// SAFETY: the driver API is thread safe; a context is an opaque handle that any thread may make current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// One GPU of the driver.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) id: GpuId,
    pub(crate) device: CUdevice,
    pub(crate) context: Context,
    /// What the driver said when the GPU was lost.
    lost: OnceLock<String>,
}

impl Gpu {
    pub(crate) fn new(id: GpuId, device: CUdevice, context: Context) -> Self {
        Self { id, device, context, lost: OnceLock::new() }
    }
}

/// The loaded driver and its GPUs.
pub(crate) struct Api {
    pub(crate) symbols: Symbols,
    pub(crate) gpus: Vec<Gpu>,
}

impl Api {
    /// The GPU with a number.
    pub(crate) fn gpu(&self, gpu: GpuId) -> Result<&Gpu, GpuError> {
        self.gpus.get(gpu.index()).ok_or(GpuError::NoSuchGpu { gpu })
    }

    /// The GPU with a number, unless it is lost.
    pub(crate) fn alive(&self, gpu: GpuId) -> Result<&Gpu, GpuError> {
        let found = self.gpu(gpu)?;
        match found.lost.get() {
            None => Ok(found),
            Some(reason) => Err(GpuError::DeviceLost { gpu, reason: reason.clone() }),
        }
    }

    /// Makes a GPU's context current on this thread; it stays so, and every call sets its own.
    pub(crate) fn enter(&self, gpu: &Gpu) -> Result<(), Refusal> {
        // SAFETY: the context was retained when the backend was made and is released when it goes.
        check("cuCtxSetCurrent", unsafe { (self.symbols.ctx_set_current)(gpu.context.0) })
    }

    /// Runs calls in a GPU's context.
    pub(crate) fn within<T>(
        &self,
        gpu: GpuId,
        calls: impl FnOnce(&Gpu) -> Result<T, Refusal>,
    ) -> Result<T, GpuError> {
        let gpu = self.alive(gpu)?;
        self.enter(gpu).and_then(|()| calls(gpu)).map_err(|refusal| self.explain(gpu, refusal))
    }

    /// What a refused call means. Asks the driver whether the context is of any further use.
    pub(crate) fn explain(&self, gpu: &Gpu, refusal: Refusal) -> GpuError {
        match self.poisoned(gpu, refusal) {
            Some(lost) => lost,
            None => GpuError::Driver { call: refusal.call, reason: self.name(refusal.code) },
        }
    }

    /// What failed work means.
    pub(crate) fn explain_work(&self, gpu: &Gpu, refusal: Refusal) -> GpuError {
        match self.poisoned(gpu, refusal) {
            Some(lost) => lost,
            None => GpuError::CopyFailed { gpu: gpu.id, reason: self.name(refusal.code) },
        }
    }

    /// Whether an error has ended the context, which is for good.
    fn poisoned(&self, gpu: &Gpu, refusal: Refusal) -> Option<GpuError> {
        if ABOUT_THE_CALL.contains(&refusal.code) {
            return None;
        }
        // An error that stays is the answer to every call, this harmless one included.
        if self.enter(gpu).is_ok() && self.memory_info().is_ok() {
            return None;
        }
        let reason = gpu.lost.get_or_init(|| {
            let reason = format!("{} after {}", self.name(refusal.code), refusal.call);
            tracing::error!(gpu = %gpu.id, %reason, "GPU is lost");
            reason
        });
        Some(GpuError::DeviceLost { gpu: gpu.id, reason: reason.clone() })
    }

    /// Free and total bytes of the current context's GPU.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), Refusal> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: both pointers are ours for the call.
        check("cuMemGetInfo", unsafe { (self.symbols.mem_get_info)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// A result code in words.
    pub(crate) fn name(&self, code: u32) -> String {
        name_of(&self.symbols, code)
    }
}

/// A result code in words.
pub(crate) fn name_of(symbols: &Symbols, code: u32) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the pointer is ours for the call; the function takes any code.
    let known = unsafe { (symbols.get_error_name)(code, &raw mut name) };
    if known != 0 || name.is_null() {
        return format!("CUDA error {code}");
    }
    // SAFETY: the driver's names are constant strings that end with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    format!("{} ({code})", name.to_string_lossy())
}

/// Loads the driver and starts it; says why it cannot be used.
pub(crate) fn load() -> Result<(Symbols, c_int), GpuError> {
    // SAFETY: opens the library if it is there, which runs its constructors, and closes it again.
    if !unsafe { sys::is_culib_present() } {
        return Err(unavailable("libcuda.so.1 is not there: install the NVIDIA driver".to_owned()));
    }
    // SAFETY: the library is there, as was just seen.
    let symbols = unsafe { Symbols::load() }.map_err(|Missing { names, driver_version }| {
        let version = driver_version.map_or_else(|| "of unknown version".to_owned(), version_text);
        unavailable(format!(
            "the driver ({version}) lacks {}: install NVIDIA driver 470 or newer",
            names.join(", ")
        ))
    })?;
    // SAFETY: zero is the only flag there is.
    let code = unsafe { (symbols.init)(0) };
    if code != 0 {
        return Err(unavailable(format!("cuInit says {}", name_of(&symbols, code))));
    }
    let mut version = 0;
    // SAFETY: the pointer is ours for the call.
    let code = unsafe { (symbols.driver_get_version)(&raw mut version) };
    if code != 0 {
        return Err(unavailable(format!("cuDriverGetVersion says {}", name_of(&symbols, code))));
    }
    Ok((symbols, version))
}

/// The driver's number as people write it.
pub(crate) fn version_text(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

pub(crate) fn unavailable(reason: String) -> GpuError {
    GpuError::Unavailable { backend: "cuda", reason }
}

/// Whether the driver says of itself that it is a simulated one.
pub(crate) fn is_simulated_driver() -> bool {
    // SAFETY: only called after `load`, so the library is there.
    let library = unsafe { sys::culib() };
    // SAFETY: only looked up, never called; no real driver has it.
    unsafe { library.get::<unsafe extern "C" fn() -> u32>(b"vramSimulatedDriver") }.is_ok()
}
