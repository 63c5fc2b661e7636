//! The C side: layouts, result codes, pointers of the caller's, and the wall no panic passes.

use std::ffi::{CStr, c_char, c_uint, c_ulonglong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use vram_gpu::PciAddress;

/// A device: one more than its number, so that none is null.
pub(crate) type Device = *mut c_void;

/// A failure, as `nvmlReturn_t` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Failure {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Unknown = 999,
}

/// What a function does.
pub(crate) type Done = Result<(), Failure>;

pub(crate) fn guard(body: impl FnOnce() -> Done) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure as u32,
        Err(_) => Failure::Unknown as u32,
    }
}

/// Declares exported functions. The body is a `Result<(), Failure>`.
macro_rules! api {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[allow(non_snake_case, reason = "the API's names")]
            #[unsafe(no_mangle)]
            pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::abi::guard(|| $body)
            }
        )*
    };
}
pub(crate) use api;

/// A pointer the caller gave for a result. The API requires it to be null or good for one `T`.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Failure::InvalidArgument);
        }
        // SAFETY: not null, so by the contract of the API good for writing one `T`; alignment is not relied on.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }
}

/// A C string of the caller's.
pub(crate) fn text(start: *const c_char) -> Result<String, Failure> {
    if start.is_null() {
        return Err(Failure::InvalidArgument);
    }
    // SAFETY: not null, so by the contract of the API a string that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map(str::to_owned).map_err(|_not_text| Failure::InvalidArgument)
}

/// Writes a string with its end into a caller's buffer that must hold all of it.
pub(crate) fn put_text(buffer: *mut c_char, len: c_uint, text: &str) -> Done {
    if buffer.is_null() {
        return Err(Failure::InvalidArgument);
    }
    if usize::try_from(len).is_ok_and(|len| len <= text.len()) {
        return Err(Failure::InsufficientSize);
    }
    // SAFETY: the buffer has `len` bytes by the contract of the API, more than the text; the text is ours.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len()) };
    // SAFETY: as above; `text.len()` is still below `len`.
    unsafe { buffer.add(text.len()).write(0) };
    Ok(())
}

/// `nvmlPciInfo_t`.
#[repr(C)]
pub(crate) struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_subsystem_id: c_uint,
    bus_id: [u8; 32],
}

impl PciInfo {
    pub(crate) fn of(pci: PciAddress) -> Self {
        let mut info = Self {
            bus_id_legacy: [0; 16],
            domain: pci.domain,
            bus: c_uint::from(pci.bus),
            device: c_uint::from(pci.device),
            pci_device_id: 0,
            pci_subsystem_id: 0,
            bus_id: [0; 32],
        };
        let bus_id = format!("{:08X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device);
        info.bus_id[..bus_id.len()].copy_from_slice(bus_id.as_bytes());
        let legacy = format!("{:04X}:{:02X}:{:02X}.0", pci.domain & 0xffff, pci.bus, pci.device);
        info.bus_id_legacy[..legacy.len()].copy_from_slice(legacy.as_bytes());
        info
    }
}

/// `nvmlMemory_v2_t`; the caller has set the version, which is written back as it must have been.
#[repr(C)]
pub(crate) struct Memory {
    pub(crate) version: c_uint,
    pub(crate) total: c_ulonglong,
    pub(crate) reserved: c_ulonglong,
    pub(crate) free: c_ulonglong,
    pub(crate) used: c_ulonglong,
}

const _: () = assert!(size_of::<PciInfo>() == 68 && size_of::<Memory>() == 40);
