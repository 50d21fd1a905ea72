//! Loaded kernels of one device.
#![allow(unsafe_code)] // modules and functions are driver handles

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, result, sys};
use rayon::prelude::*;

use super::compile::{Cache, Key, compile};
use super::error::{Named, Result};
use crate::kernels::{self, Family, Function};

/// Callback that receives the number of finished modules and their total.
pub type Progress<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A list of families, in loading order.
pub type Families = &'static [&'static Family];

type Image = (&'static Family, usize, Vec<u8>);

/// Machine code of one list of families for one architecture.
struct Compiled {
    families: Families,
    architecture: String,
    images: Arc<Vec<Image>>,
}

/// Machine code that this process has compiled or read from the cache, shared by its ranks.
static COMPILED: Mutex<Vec<Compiled>> = Mutex::new(Vec::new());

/// Returns the machine code of `families` for `architecture`, from the cache or newly compiled, a few at a
/// time. `progress` receives the number finished and the total.
///
/// # Errors
/// The first compilation that failed.
pub(crate) fn images(
    families: Families,
    architecture: &str,
    progress: &Progress<'_>,
) -> Result<Arc<Vec<Image>>> {
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let same = |one: &&Compiled| std::ptr::eq(one.families, families) && one.architecture == architecture;
    if let Some(entry) = compiled.iter().find(same) {
        return Ok(Arc::clone(&entry.images));
    }
    let cache = Cache::of_user();
    let variants = |family: &&'static Family| {
        let family = *family;
        (0..family.variants.len()).map(move |variant| (family, variant))
    };
    let wanted: Vec<_> = families.iter().flat_map(variants).collect();
    let done = AtomicUsize::new(0);
    let image = |(family, variant): &(&'static Family, usize)| {
        let make = || compile(family, *variant, architecture);
        let cubin = cache.get_or_make(&Key::from_source(family, *variant, architecture), make)?;
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, wanted.len());
        Ok((*family, *variant, cubin))
    };
    let images = Arc::new(wanted.par_iter().map(image).collect::<Result<Vec<_>>>()?);
    let architecture = architecture.to_owned();
    compiled.push(Compiled { families, architecture, images: Arc::clone(&images) });
    Ok(images)
}

/// A kernel ready to launch.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) handle: sys::CUfunction,
    pub(crate) parameters: Vec<usize>,
    /// Maximum dynamic shared memory that is currently allowed, in bytes.
    pub(crate) shared_bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Modules {
    context: Arc<CudaContext>,
    modules: Vec<(&'static Family, usize, sys::CUmodule)>,
    kernels: HashMap<kernels::Key, Kernel>,
}

impl Modules {
    /// Loads all kernels of `families`, so that no kernel is loaded during training.
    pub(crate) fn load(context: &Arc<CudaContext>, families: Families, architecture: &str) -> Result<Self> {
        let images = images(families, architecture, &|_, _| ())?;
        let mut loaded =
            Modules { context: Arc::clone(context), modules: Vec::new(), kernels: HashMap::new() };
        for (family, variant, cubin) in images.iter() {
            // SAFETY: the image is complete machine code: compiled here, or read from the cache with a valid
            // digest.
            let module =
                unsafe { result::module::load_data(cubin.as_ptr().cast()) }.named("cuModuleLoadData")?;
            loaded.modules.push((family, *variant, module));
        }
        Ok(loaded)
    }

    /// Returns the kernel, after allowing at least `shared_bytes` of dynamic shared memory; `None` if the
    /// family has no such kernel or is not loaded.
    pub(crate) fn kernel(&mut self, function: Function, shared_bytes: u32) -> Result<Option<&Kernel>> {
        let key = function.key();
        if !self.kernels.contains_key(&key) {
            let Some(kernel) = self.find(function) else { return Ok(None) };
            self.kernels.insert(key, kernel);
        }
        let Some(kernel) = self.kernels.get_mut(&key) else { return Ok(None) };
        if shared_bytes > kernel.shared_bytes {
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the handle belongs to a loaded module.
            unsafe {
                result::function::set_function_attribute(kernel.handle, attribute, shared_bytes as i32)
            }
            .named("cuFuncSetAttribute")?;
            kernel.shared_bytes = shared_bytes;
        }
        Ok(Some(kernel))
    }

    fn find(&self, function: Function) -> Option<Kernel> {
        let same = |(family, variant, _): &&(&'static Family, usize, sys::CUmodule)| {
            std::ptr::eq(*family, function.family()) && *variant == function.variant_index()
        };
        let (_, _, module) = self.modules.iter().find(same)?;
        let name = CString::new(function.symbol()).ok()?;
        // SAFETY: the module stays loaded as long as `self`.
        let handle = unsafe { result::module::get_function(*module, name) }.ok()?;
        let mut parameters = Vec::new();
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the handle is alive, and both pointers refer to live values; the call fails past the last
        // parameter.
        while unsafe { sys::cuFuncGetParamInfo(handle, parameters.len(), &raw mut offset, &raw mut size) }
            .result()
            .is_ok()
        {
            parameters.push(size);
        }
        Some(Kernel { handle, parameters, shared_bytes: 0 })
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        for (_, _, module) in self.modules.drain(..) {
            // SAFETY: loaded once, unloaded once; no kernel is launched after the device is gone.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
