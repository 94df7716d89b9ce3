//! What C hands over: pointers to objects, to places for results, to texts and to options.
//!
//! Each function turns one kind of pointer into something safe, or says what is wrong with it. What
//! cannot be seen from a pointer is the caller's promise; the header's first page has it.
// UNSAFETY: pointers of C callers are dereferenced here.
#![expect(unsafe_code, reason = "the C caller's pointers")]

use std::ffi::{CStr, c_char};

use crate::failure::Failure;

fn null(what: &str) -> Failure {
    Failure::misuse(format!("{what} is null"))
}

/// The object behind a handle.
///
/// # Safety
/// Null, or from `Place::give_handle` with the same type, not destroyed before the last use.
pub(crate) unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise; all handles are used through shared references only.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// Destroys the object behind a handle; null is none.
///
/// # Safety
/// As [`borrow`], and nobody uses it any more.
pub(crate) unsafe fn destroy<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: it came from `Box::into_raw` in `give_handle`, and this is its last use.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// A place of the caller's for one value.
pub(crate) struct Place<T>(*mut T);

/// A place for a result.
///
/// # Safety
/// Null, or writable and aligned for one `T` until the call returns.
pub(crate) unsafe fn place<T>(place: *mut T, what: &str) -> Result<Place<T>, Failure> {
    if place.is_null() { Err(null(what)) } else { Ok(Place(place)) }
}

impl<T> Place<T> {
    pub fn give(self, value: T) {
        // SAFETY: not null by `place`, and writable by its caller's promise.
        unsafe { self.0.write(value) };
    }
}

impl<T> Place<*mut T> {
    /// Hands an object over to the caller, who destroys it.
    pub fn give_handle(self, object: T) {
        self.give(Box::into_raw(Box::new(object)));
    }
}

/// A text.
///
/// # Safety
/// Null, or a C string that stays as it is until the call returns.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and a C string by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::misuse(format!("{what} is not UTF-8")))
}

/// A text that may be left out, as null or as "".
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn text_if_any<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's caller promises.
    let text = unsafe { text(pointer, what) }?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Options that begin with their own size.
pub(crate) trait Options: Copy + Default {
    fn struct_bytes(&self) -> u32;
}

/// Options; the defaults where they are left out.
///
/// # Safety
/// Null, or readable and aligned for one `T` until the call returns.
pub(crate) unsafe fn options<T: Options>(options: *const T, what: &str) -> Result<T, Failure> {
    // SAFETY: the caller's promise; every `T` here is made of numbers and pointers.
    let Some(options) = (unsafe { options.as_ref() }) else { return Ok(T::default()) };
    let (given, own) = (options.struct_bytes() as usize, size_of::<T>());
    if given != own {
        let text = format!("{what}.struct_bytes is {given}: this library's has {own} bytes");
        return Err(Failure::misuse(text));
    }
    Ok(*options)
}

/// Bytes to be read.
///
/// # Safety
/// Null, or readable for `bytes` bytes that do not change until the call returns.
pub(crate) unsafe fn bytes<'a>(
    from: *const u8,
    bytes: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    if from.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and readable by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, bytes) })
}

/// Bytes to be written.
///
/// # Safety
/// Null, or writable for `bytes` bytes that nobody else uses until the call returns.
pub(crate) unsafe fn bytes_mut<'a>(
    to: *mut u8,
    bytes: usize,
    what: &str,
) -> Result<&'a mut [u8], Failure> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and writable by the caller's promise. What is there may be unset in C; bytes of
    // any value are valid, and it is only overwritten.
    Ok(unsafe { std::slice::from_raw_parts_mut(to, bytes) })
}
