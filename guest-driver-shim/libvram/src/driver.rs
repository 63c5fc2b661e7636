//! The boundary to the kernel: one method for each call of `/dev/vramN`.
//!
//! The methods take slices where the ABI has pointers, so that whoever calls a [`Driver`] cannot get a pointer or a
//! length wrong. [`KernelDriver`] is the only implementation outside tests, and the only code that makes the calls.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    time::Duration,
};

use crate::uapi;

/// A number from the errno table of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }
}

/// What `/dev/vramN` can do. `moved` fields are filled in on errors too.
pub(crate) trait Driver: Send + Sync {
    /// The descriptor of the context.
    fn as_fd(&self) -> BorrowedFd<'_>;
    fn version(&self, request: &mut uapi::Version) -> Result<(), Errno>;
    fn info(&self, request: &mut uapi::Info, gpus: &mut [uapi::Gpu]) -> Result<(), Errno>;
    fn alloc(&self, request: &mut uapi::Alloc) -> Result<(), Errno>;
    fn free(&self, request: &uapi::Free) -> Result<(), Errno>;
    fn query(&self, request: &mut uapi::Query, extents: &mut [uapi::Extent]) -> Result<(), Errno>;
    fn advise(&self, request: &uapi::Advise) -> Result<(), Errno>;
    /// The next event; EAGAIN if there is none.
    fn event(&self, request: &mut uapi::Event) -> Result<(), Errno>;
    /// Waits until [`event`](Self::event) has something to say, at most so long; may return before.
    fn wait_event(&self, timeout: Option<Duration>) -> Result<(), Errno>;
    fn write(&self, request: &mut uapi::Transfer, source: &[u8]) -> Result<(), Errno>;
    fn read(&self, request: &mut uapi::Transfer, destination: &mut [u8]) -> Result<(), Errno>;
    fn copy(&self, request: &mut uapi::Copy) -> Result<(), Errno>;
    fn fill(&self, request: &mut uapi::Fill) -> Result<(), Errno>;
    fn fence(&self, request: &uapi::Fence) -> Result<(), Errno>;
}

/// An open `/dev/vramN`.
#[derive(Debug)]
pub(crate) struct KernelDriver {
    file: OwnedFd,
}

impl KernelDriver {
    /// Opens the node for reading and writing, closed on exec.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: open(2) reads a NUL-terminated string, which `path` is and stays for the call.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: from_raw_fd wants a descriptor nobody else owns; open(2) has just made this one.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { file })
    }

    /// Takes over a descriptor somebody else opened. Whether it is a vram device shows at the first call.
    pub(crate) fn from_fd(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Makes a call whose argument the kernel may write.
    ///
    /// # Safety
    /// `T` is the structure `number` carries, and each pointer in it is valid for what the call does with it and as
    /// long as it says, for the length it says. The kernel keeps none of them after the call.
    unsafe fn call<T>(&self, number: u32, argument: &mut T) -> Result<(), Errno> {
        debug_assert_eq!((number >> 16) & 0x3fff, size_of::<T>() as u32);
        // SAFETY: ioctl(2) on a descriptor we own, with a pointer to a `T` that is exclusively ours for the call. The
        // size encoded in `number` is that of `T`, and the caller vouches for the pointers inside.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), number as _, std::ptr::from_mut(argument)) };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

impl Driver for KernelDriver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn version(&self, request: &mut uapi::Version) -> Result<(), Errno> {
        // SAFETY: CALL_VERSION carries a Version, which holds no pointer.
        unsafe { self.call(uapi::CALL_VERSION, request) }
    }

    fn info(&self, request: &mut uapi::Info, gpus: &mut [uapi::Gpu]) -> Result<(), Errno> {
        request.gpu_capacity = capacity(gpus.len());
        request.gpus = gpus.as_mut_ptr().addr_exposed();
        // SAFETY: CALL_INFO carries an Info. Its only pointer is to `gpus`, writable for the call, and the capacity is
        // at most its length; the kernel writes plain integers, any value of which is a valid Gpu.
        unsafe { self.call(uapi::CALL_INFO, request) }
    }

    fn alloc(&self, request: &mut uapi::Alloc) -> Result<(), Errno> {
        // SAFETY: CALL_ALLOC carries an Alloc, which holds no pointer.
        unsafe { self.call(uapi::CALL_ALLOC, request) }
    }

    fn free(&self, request: &uapi::Free) -> Result<(), Errno> {
        let mut request = *request;
        // SAFETY: CALL_FREE carries a Free, which holds no pointer.
        unsafe { self.call(uapi::CALL_FREE, &mut request) }
    }

    fn query(&self, request: &mut uapi::Query, extents: &mut [uapi::Extent]) -> Result<(), Errno> {
        request.extent_capacity = capacity(extents.len());
        request.extents = extents.as_mut_ptr().addr_exposed();
        // SAFETY: CALL_QUERY carries a Query. Its only pointer is to `extents`, writable for the call, and the capacity
        // is at most its length; the kernel writes plain integers, any value of which is a valid Extent.
        unsafe { self.call(uapi::CALL_QUERY, request) }
    }

    fn advise(&self, request: &uapi::Advise) -> Result<(), Errno> {
        let mut request = *request;
        // SAFETY: CALL_ADVISE carries an Advise, which holds a device address and no pointer.
        unsafe { self.call(uapi::CALL_ADVISE, &mut request) }
    }

    fn event(&self, request: &mut uapi::Event) -> Result<(), Errno> {
        // SAFETY: CALL_EVENT carries an Event, which holds no pointer.
        unsafe { self.call(uapi::CALL_EVENT, request) }
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        let mut descriptor = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up, so that who waits for the rest of a time does not come back before it is over.
        let timeout_ms = timeout
            .map_or(-1, |timeout| i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: poll(2) with one pollfd that is exclusively ours for the call, and a descriptor we own.
        let result = unsafe { libc::poll(&mut descriptor, 1, timeout_ms) };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    fn write(&self, request: &mut uapi::Transfer, source: &[u8]) -> Result<(), Errno> {
        request.direction = uapi::TO_DEVICE;
        request.length = source.len() as u64;
        request.user_pointer = source.as_ptr().addr_exposed();
        // SAFETY: CALL_TRANSFER carries a Transfer. With TO_DEVICE the kernel only reads `length` bytes from the
        // pointer, which is `source`, borrowed for the call.
        unsafe { self.call(uapi::CALL_TRANSFER, request) }
    }

    fn read(&self, request: &mut uapi::Transfer, destination: &mut [u8]) -> Result<(), Errno> {
        request.direction = uapi::FROM_DEVICE;
        request.length = destination.len() as u64;
        request.user_pointer = destination.as_mut_ptr().addr_exposed();
        // SAFETY: CALL_TRANSFER carries a Transfer. With FROM_DEVICE the kernel writes at most `length` bytes to the
        // pointer, which is `destination`, exclusively ours for the call. A device that answers after the call has
        // given up writes into pages the kernel module still holds and never into this buffer's later owner.
        unsafe { self.call(uapi::CALL_TRANSFER, request) }
    }

    fn copy(&self, request: &mut uapi::Copy) -> Result<(), Errno> {
        // SAFETY: CALL_COPY carries a Copy, which holds device addresses and no pointer.
        unsafe { self.call(uapi::CALL_COPY, request) }
    }

    fn fill(&self, request: &mut uapi::Fill) -> Result<(), Errno> {
        // SAFETY: CALL_FILL carries a Fill, which holds a device address and no pointer.
        unsafe { self.call(uapi::CALL_FILL, request) }
    }

    fn fence(&self, request: &uapi::Fence) -> Result<(), Errno> {
        let mut request = *request;
        // SAFETY: CALL_FENCE carries a Fence, which holds no pointer.
        unsafe { self.call(uapi::CALL_FENCE, &mut request) }
    }
}

/// The number of entries the ABI can say; fewer than there are when there are more than it can say.
fn capacity(entries: usize) -> u32 {
    u32::try_from(entries).unwrap_or(u32::MAX)
}

/// A pointer as the ABI carries it. The kernel reaches the bytes behind the compiler's back, so provenance is exposed.
trait Exposed {
    fn addr_exposed(self) -> u64;
}

impl<T> Exposed for *const T {
    fn addr_exposed(self) -> u64 {
        self.expose_provenance() as u64
    }
}

impl<T> Exposed for *mut T {
    fn addr_exposed(self) -> u64 {
        self.expose_provenance() as u64
    }
}
