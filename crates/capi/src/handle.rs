//! What C hands over: pointers to objects, to places for results, to texts and to options.
//!
//! Each function turns one kind of pointer into something safe, or says what is wrong with it. What
//! cannot be seen from a pointer is the caller's promise; the header's first page has it.
// UNSAFETY: pointers of C callers are dereferenced here.
#![expect(unsafe_code, reason = "the C caller's pointers")]

use std::any::TypeId;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::failure::Failure;

fn null(what: &str) -> Failure {
    Failure::misuse(format!("{what} is null"))
}

/// What a handle points to. What stands before the object finds out calls that would do harm: with a
/// handle of another kind, with one that was destroyed, or in a child that was forked.
#[repr(C)]
struct Kept<T> {
    owner: Owner,
    object: T,
}

/// At the same place in front of all objects.
#[derive(Clone, Copy)]
struct Owner {
    /// That of the object; of nothing once it was destroyed.
    kind: TypeId,
    /// The process that made it: threads and mappings behind it are that one's.
    process: u32,
}

/// The kind of a handle that was destroyed.
struct Destroyed;

/// Whether a handle is one for objects of type `T` that this process made.
///
/// # Safety
/// Not null, and from `Place::give_handle`, of whatever type.
unsafe fn check<T: 'static>(handle: *const T, what: &str) -> Result<*const Kept<T>, Failure> {
    let kept: *const Kept<T> = handle.cast();
    // SAFETY: the caller's promise; these fields lie at the same place for all types.
    let Owner { kind, process } = unsafe { kept.cast::<Owner>().read_unaligned() };
    if kind != TypeId::of::<T>() {
        let why = "not a handle of this kind, or it was destroyed before";
        return Err(Failure::misuse(format!("{what} at {handle:p}: {why}")));
    }
    if process != std::process::id() {
        return Err(Failure::misuse(format!(
            "{what} belongs to process {process}, from which this one was forked; make one here"
        )));
    }
    Ok(kept)
}

/// The object behind a handle.
///
/// # Safety
/// Null, or from `Place::give_handle`, not destroyed before the last use.
pub(crate) unsafe fn borrow<'a, T: 'static>(
    handle: *const T,
    what: &str,
) -> Result<&'a T, Failure> {
    if handle.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and the caller's promise.
    let kept = unsafe { check(handle, what) }?;
    // SAFETY: it is of this type by `check`; all handles are used through shared references only.
    Ok(unsafe { &(*kept).object })
}

/// Destroys the object behind a handle; null is none. What a parent process made stays.
///
/// # Safety
/// As [`borrow`], and nobody uses it any more.
pub(crate) unsafe fn destroy<T: 'static>(handle: *mut T, what: &str) -> Result<(), Failure> {
    if handle.is_null() {
        return Ok(());
    }
    // SAFETY: not null, and the caller's promise.
    let kept = unsafe { check(handle, what) }?.cast_mut();
    // SAFETY: it came from `Box::into_raw` in `give_handle`, of this type by `check`; this is its last use.
    let mut kept = unsafe { Box::from_raw(kept) };
    kept.owner.kind = TypeId::of::<Destroyed>();
    drop(kept);
    Ok(())
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

impl<T: 'static> Place<*mut T> {
    /// Hands an object over to the caller, who destroys it.
    pub fn give_handle(self, object: T) {
        let owner = Owner { kind: TypeId::of::<T>(), process: std::process::id() };
        let kept = Kept { owner, object };
        self.give(Box::into_raw(Box::new(kept)).cast());
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

/// The name of a file: any bytes but zero.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn name_of_file<'a>(
    name: *const c_char,
    what: &str,
) -> Result<&'a Path, Failure> {
    if name.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and a C string by the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    Ok(Path::new(OsStr::from_bytes(name.to_bytes())))
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

/// Nothing that is there is longer than half of all addresses.
fn check_bytes(at: *const u8, bytes: usize, what: &str) -> Result<(), Failure> {
    if at.is_null() {
        return Err(null(what));
    }
    let end = isize::try_from(bytes).ok().and_then(|_| at.addr().checked_add(bytes));
    end.map(drop).ok_or_else(|| Failure::misuse(format!("{what}: nothing is {bytes} bytes long")))
}

/// Bytes to be read; null will do for none.
///
/// # Safety
/// Null, or readable for `bytes` bytes that do not change until the call returns.
pub(crate) unsafe fn bytes<'a>(
    from: *const u8,
    bytes: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    check_bytes(from, bytes, what)?;
    // SAFETY: checked above, and readable by the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, bytes) })
}

/// Bytes to be written; null will do for none.
///
/// # Safety
/// Null, or writable for `bytes` bytes that nobody else uses until the call returns.
pub(crate) unsafe fn bytes_mut<'a>(
    to: *mut u8,
    bytes: usize,
    what: &str,
) -> Result<&'a mut [u8], Failure> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    check_bytes(to, bytes, what)?;
    // SAFETY: checked above, and writable by the caller's promise. What is there may be unset in C; bytes of
    // any value are valid, and it is only overwritten.
    Ok(unsafe { std::slice::from_raw_parts_mut(to, bytes) })
}
