//! NVTX ranges: named sections of the host's work, which tools such as Nsight Systems show beside the
//! device's. The environment names the tool's library; without it, nothing is loaded and calls do nothing.
//!
//! The tool's library receives tables of function pointers and fills in the functions that it implements.
#![allow(unsafe_code)] // a tool's library is loaded, and called through them

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Environment variable with the path of the tool's library.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// The library's function that receives the tables.
const INITIALIZE: &[u8] = b"InitializeInjectionNvtx2\0";
/// Number of functions in each module of NVTX 3, by the module's number; module 1 is the core.
const SIZES: [usize; MODULES] = [0, 16, 9, 15, 7, 16, 7];
const MODULES: usize = 7;
const MOST: usize = 16;
const CORE: usize = 1;
/// Indices of functions in the core module.
const RANGE_START: usize = 5;
const RANGE_END: usize = 7;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

type Slot = AtomicPtr<c_void>;
type GetExportTable = extern "C" fn(u32) -> *const c_void;

/// Function pointers that the tool has filled in.
static SLOTS: [[Slot; MOST]; MODULES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; MOST] }; MODULES];

/// Addresses of the function pointers, as the tool receives them.
struct Addresses([[*const Slot; MOST]; MODULES]);

// SAFETY: the addresses are of statics, and nothing writes to the table.
unsafe impl Sync for Addresses {}

static ADDRESSES: Addresses = Addresses({
    let mut all = [[ptr::null(); MOST]; MODULES];
    let mut module = 0;
    while module < MODULES {
        let mut function = 1;
        while function < SIZES[module] {
            all[module][function] = &raw const SLOTS[module][function];
            function += 1;
        }
        module += 1;
    }
    all
});

#[repr(C)]
struct Callbacks {
    size: usize,
    module_functions: extern "C" fn(c_int, *mut *const *const Slot, *mut c_uint) -> c_int,
}

static CALLBACKS: Callbacks = Callbacks { size: size_of::<Callbacks>(), module_functions };

#[repr(C)]
struct Versions {
    size: usize,
    version: u32,
    reserved: u32,
    set_tool_version: extern "C" fn(u32),
}

static VERSIONS: Versions =
    Versions { size: size_of::<Versions>(), version: 3, reserved: 0, set_tool_version };

extern "C" fn set_tool_version(_: u32) {}

extern "C" fn export_table(id: u32) -> *const c_void {
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSIONS).cast(),
        _ => ptr::null(),
    }
}

extern "C" fn module_functions(module: c_int, table: *mut *const *const Slot, size: *mut c_uint) -> c_int {
    let Some(module) = usize::try_from(module).ok().filter(|module| (1..MODULES).contains(module)) else {
        return 0;
    };
    if table.is_null() {
        return 0;
    }
    // SAFETY: the tool passes an address for the table's address.
    unsafe { table.write(ADDRESSES.0[module].as_ptr()) };
    if !size.is_null() {
        // At most 16. SAFETY: the tool passes an address for the table's length.
        unsafe { size.write(SIZES[module] as c_uint) };
    }
    1
}

/// Returns whether a tool receives ranges. The first call loads the library that the environment names.
pub fn is_attached() -> bool {
    static ATTACHED: OnceLock<bool> = OnceLock::new();
    *ATTACHED.get_or_init(|| std::env::var_os(VARIABLE).is_some_and(|path| attach(&path).unwrap_or(false)))
}

/// Loads a tool's library and passes it the tables. Returns whether it receives ranges.
fn attach(path: &std::ffi::OsStr) -> Result<bool, libloading::Error> {
    // SAFETY: the user names a tool's library in the environment; it stays loaded until the process ends.
    let library = unsafe { libloading::Library::new(path) }?;
    // SAFETY: the function of this name takes the function that returns tables, by NVTX's definition.
    let initialize = unsafe { library.get::<extern "C" fn(GetExportTable) -> c_int>(INITIALIZE) }?;
    let takes = initialize(export_table) != 0;
    std::mem::forget(library);
    Ok(takes)
}

/// Returns the tool's function with this index in the core module, if the tool implements it.
fn function(number: usize) -> Option<ptr::NonNull<c_void>> {
    ptr::NonNull::new(SLOTS[CORE][number].load(Ordering::Acquire))
}

/// Begins a range of this thread, nested in the current one. Call it only if [`is_attached`].
pub fn push(name: &str) {
    let (Some(push), Ok(name)) = (function(RANGE_PUSH), CString::new(name)) else { return };
    // SAFETY: the tool has set this slot to a function of this type, by NVTX's definition.
    unsafe {
        let push: extern "C" fn(*const c_char) -> c_int = std::mem::transmute(push.as_ptr());
        push(name.as_ptr());
    }
}

/// Ends the range that [`push`] began last on this thread.
pub fn pop() {
    let Some(pop) = function(RANGE_POP) else { return };
    // SAFETY: as in `push`.
    unsafe {
        let pop: extern "C" fn() -> c_int = std::mem::transmute(pop.as_ptr());
        pop();
    }
}

/// A range that may overlap others. Dropping it ends it.
#[derive(Debug)]
pub struct Range(u64);

impl Range {
    /// Begins a range; `None` if no tool receives ranges.
    pub fn start(name: &str) -> Option<Self> {
        if !is_attached() {
            return None;
        }
        let start = function(RANGE_START)?;
        let name = CString::new(name).ok()?;
        // SAFETY: as in `push`.
        unsafe {
            let start: extern "C" fn(*const c_char) -> u64 = std::mem::transmute(start.as_ptr());
            Some(Range(start(name.as_ptr())))
        }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let Some(end) = function(RANGE_END) else { return };
        // SAFETY: as in `push`.
        unsafe {
            let end: extern "C" fn(u64) = std::mem::transmute(end.as_ptr());
            end(self.0);
        }
    }
}
