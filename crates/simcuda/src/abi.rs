//! The C side: argument types, layouts, and the wall no panic passes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::Status;

/// What a function does.
pub(crate) type Done = Result<(), Status>;

/// An opaque handle: context, stream or event.
pub(crate) type Handle = *mut c_void;

/// Runs the body of a function; what it panics with ends here.
pub(crate) fn guard(body: impl FnOnce() -> Done) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status as u32,
        Err(_) => Status::UNKNOWN as u32,
    }
}

/// Declares exported functions of the driver API. The body is a `Result<(), Status>`.
macro_rules! api {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$attribute])*
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the API's names and arguments")]
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
    /// Writes the result; a null pointer is an invalid value.
    pub(crate) fn put(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so by the contract of the API good for writing one `T`; alignment is not relied on.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the result where the API allows a null pointer.
    pub(crate) fn put_if_wanted(self, value: T) -> Done {
        if self.0.is_null() { Ok(()) } else { self.put(value) }
    }

    pub(crate) fn check(&self) -> Done {
        if self.0.is_null() { Err(Status::INVALID_VALUE) } else { Ok(()) }
    }

    #[cfg(test)]
    pub(crate) fn to(place: &mut T) -> Self {
        Self(place)
    }
}

/// A pointer the caller gave for reading `T`s. The API requires it to be null or good for as many as it says.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value at an index; a null pointer is an invalid value.
    pub(crate) fn get(self, index: usize) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, so by the contract of the API good for reading what the caller says it has.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    #[cfg(test)]
    pub(crate) fn from(values: &[T]) -> Self {
        Self(values.as_ptr())
    }
}

/// A C string of the caller's.
pub(crate) fn text(start: *const c_char) -> Result<String, Status> {
    if start.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    // SAFETY: not null, so by the contract of the API a string that ends with a zero byte.
    let text = unsafe { CStr::from_ptr(start) };
    text.to_str().map(str::to_owned).map_err(|_not_text| Status::INVALID_VALUE)
}

/// Writes a string with its end into a caller's buffer, cut to its length.
pub(crate) fn put_text(buffer: *mut c_char, len: c_int, text: &str) -> Done {
    let room = usize::try_from(len).ok().filter(|len| *len > 0 && !buffer.is_null());
    let room = room.ok_or(Status::INVALID_VALUE)?;
    let kept = text.len().min(room - 1);
    // SAFETY: the buffer has `room` bytes by the contract of the API, and `kept` is less; the text is ours.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, kept) };
    // SAFETY: as above.
    unsafe { buffer.add(kept).write(0) };
    Ok(())
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uuid {
    pub(crate) bytes: [u8; 16],
}

/// `CUmemLocation` up to 13.1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location: Location,
    pub(crate) win32_metadata: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

const _: () = assert!(size_of::<AllocationProperties>() == 32 && size_of::<AccessDescription>() == 12);

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const LOCATION_DEVICE: c_uint = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_PINNED: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const HANDLE_POSIX_FD: c_uint = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
pub(crate) const ACCESS_READ_WRITE: c_uint = 3;
