//! DLPack capsules: memory handed to other libraries, and memory taken from them.
//!
//! Source: `dlpack.h`, version 1.1; the array API standard's `__dlpack__`. Both the plain structure and the
//! versioned one are made and taken.
// UNSAFETY: structures of a C ABI, behind capsules of Python.
#![expect(unsafe_code, reason = "DLPack is a C ABI: raw structures with a deleter")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
/// Bit of the versioned structure's flags: the taker must not write.
const READ_ONLY: u64 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a structure that we made points to; freed by its deleter.
struct Held {
    owner: Option<Py<PyAny>>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let owner = self.owner.take();
        // Whoever calls a deleter may not hold the GIL. Where Python is ending, so does the memory.
        let let_go = move |py: Python<'_>| owner.into_iter().for_each(|owner| owner.drop_ref(py));
        let _ending = Python::try_attach(let_go);
    }
}

/// What is said of memory that goes out.
#[derive(FromPyObject)]
pub struct Described {
    address: u64,
    /// Kind and index, by DLPack's numbers.
    device: (i32, i32),
    /// Code, bits and lanes.
    dtype: (u8, u8, u16),
    shape: Vec<i64>,
    read_only: bool,
}

fn held(owner: Py<PyAny>, shape: Vec<i64>) -> Box<Held> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    Box::new(Held { owner: Some(owner), shape, strides })
}

fn tensor(described: &Described, held: &mut Held) -> PyResult<Tensor> {
    let dimensions = i32::try_from(held.shape.len())
        .map_err(|_| PyBufferError::new_err("too many dimensions for DLPack"))?;
    let (kind, index) = described.device;
    let (code, bits, lanes) = described.dtype;
    let address = usize::try_from(described.address).expect("64-bit addresses");
    Ok(Tensor {
        data: std::ptr::with_exposed_provenance_mut(address),
        device: Device { kind, index },
        dimensions,
        dtype: Type { code, bits, lanes },
        shape: held.shape.as_mut_ptr(),
        strides: held.strides.as_mut_ptr(),
        byte_offset: 0,
    })
}

unsafe extern "C" fn delete_plain(managed: *mut Managed) {
    // SAFETY: DLPack calls the deleter once, with the pointer that `dlpack_export` made by `into_raw`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: `context` is the `Held` that `dlpack_export` turned into a pointer.
    drop(unsafe { Box::from_raw(managed.context.cast::<Held>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete_plain`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as in `delete_plain`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Held>()) });
}

/// Frees what nobody took: a capsule that still has its first name.
unsafe extern "C" fn destroy_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule that is going away.
    if unsafe { ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) } == 1 {
        // SAFETY: it is valid under this name, by the line above.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()) };
        // SAFETY: the pointer is the structure of `dlpack_export`, which nobody has taken.
        unsafe { delete_plain(pointer.cast()) };
    }
}

unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `destroy_plain`.
    if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
        // SAFETY: as in `destroy_plain`.
        let pointer = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
        // SAFETY: as in `destroy_plain`.
        unsafe { delete_versioned(pointer.cast()) };
    }
}

/// Makes a capsule of memory that `owner` keeps.
#[pyfunction]
pub fn dlpack_export(
    py: Python<'_>,
    owner: Py<PyAny>,
    described: Described,
    versioned: bool,
) -> PyResult<Py<PyAny>> {
    let mut held = held(owner, described.shape.clone());
    let tensor = tensor(&described, &mut held)?;
    let context = Box::into_raw(held).cast();
    let flags = if described.read_only { READ_ONLY } else { 0 };
    let capsule = if versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut ManagedVersioned));
        let managed = ManagedVersioned { major: 1, minor: 1, context, deleter, flags, tensor };
        let pointer = Box::into_raw(Box::new(managed)).cast();
        // SAFETY: a live pointer, a constant name, and a destructor for that very structure.
        unsafe { ffi::PyCapsule_New(pointer, VERSIONED.as_ptr(), Some(destroy_versioned)) }
    } else {
        let deleter = Some(delete_plain as unsafe extern "C" fn(*mut Managed));
        let pointer = Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast();
        // SAFETY: as above.
        unsafe { ffi::PyCapsule_New(pointer, PLAIN.as_ptr(), Some(destroy_plain)) }
    };
    // SAFETY: a new reference, or null with Python's error set.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?;
    Ok(capsule.unbind())
}

/// Who gives memory back that was taken from a capsule.
enum Taken {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

/// Memory that another library handed over; it goes back when this object goes.
#[pyclass(frozen, module = "sidecore._sidecore")]
pub struct DlpackMemory {
    taken: Taken,
    /// Address of the first element.
    #[pyo3(get)]
    address: u64,
    /// Kind and index of the device, by DLPack's numbers.
    #[pyo3(get)]
    device: (i32, i32),
    /// Code, bits and lanes of an element.
    #[pyo3(get)]
    dtype: (u8, u8, u16),
    #[pyo3(get)]
    shape: Vec<i64>,
    /// Strides in elements; none where rows follow one another without gaps.
    #[pyo3(get)]
    strides: Option<Vec<i64>>,
    #[pyo3(get)]
    read_only: bool,
}

// SAFETY: DLPack's deleters may be called from any thread.
unsafe impl Send for DlpackMemory {}
// SAFETY: nothing is changed through `&self`.
unsafe impl Sync for DlpackMemory {}

impl Drop for DlpackMemory {
    fn drop(&mut self) {
        match self.taken {
            Taken::Plain(managed) => {
                // SAFETY: taken by `dlpack_import` and given back once, here.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
            Taken::Versioned(managed) => {
                // SAFETY: as above.
                let deleter = unsafe { managed.as_ref() }.deleter;
                if let Some(deleter) = deleter {
                    // SAFETY: as above.
                    unsafe { deleter(managed.as_ptr()) };
                }
            }
        }
    }
}

/// The pointer of a capsule with this name, none where it has another.
fn pointer(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: any object may be asked.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } != 1 {
        return None;
    }
    // SAFETY: it is a capsule of this name, by the line above.
    NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()) })
}

/// Copies `count` numbers from a structure; none where it has none.
fn numbers(from: *const i64, count: usize) -> Option<Vec<i64>> {
    if from.is_null() {
        return None;
    }
    // SAFETY: DLPack says that shape and strides have one number for each dimension.
    Some(unsafe { std::slice::from_raw_parts(from, count) }.to_vec())
}

/// Takes the memory of a capsule.
#[pyfunction]
pub fn dlpack_import(capsule: &Bound<'_, PyAny>) -> PyResult<DlpackMemory> {
    let (taken, used) = match (pointer(capsule, VERSIONED), pointer(capsule, PLAIN)) {
        (Some(found), _) => (Taken::Versioned(found.cast()), VERSIONED_USED),
        (None, Some(found)) => (Taken::Plain(found.cast()), PLAIN_USED),
        (None, None) => {
            return Err(PyTypeError::new_err("not a DLPack capsule, or one that was taken before"));
        }
    };
    let (tensor, read_only) = match &taken {
        // SAFETY: the capsule's producer keeps the structure until its deleter is called.
        Taken::Plain(managed) => (unsafe { &managed.as_ref().tensor }, false),
        Taken::Versioned(managed) => {
            // SAFETY: as above. The versions of major 1 begin alike.
            let managed = unsafe { managed.as_ref() };
            if managed.major != 1 {
                let why = format!("DLPack {} is not known here", managed.major);
                return Err(PyBufferError::new_err(why));
            }
            (&managed.tensor, managed.flags & READ_ONLY != 0)
        }
    };
    let dimensions = usize::try_from(tensor.dimensions)
        .map_err(|_| PyBufferError::new_err("a negative number of dimensions"))?;
    let memory = DlpackMemory {
        address: tensor.data.expose_provenance() as u64 + tensor.byte_offset,
        device: (tensor.device.kind, tensor.device.index),
        dtype: (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
        shape: numbers(tensor.shape, dimensions).unwrap_or_default(),
        strides: numbers(tensor.strides, dimensions),
        read_only,
        taken,
    };
    // SAFETY: a live capsule, and a name that is constant. From here on the structure is ours.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        // The capsule still owns it.
        std::mem::forget(memory);
        return Err(PyErr::fetch(capsule.py()));
    }
    Ok(memory)
}
