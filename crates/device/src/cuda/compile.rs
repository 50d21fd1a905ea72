//! Compilation of kernel sources to machine code by NVRTC, for one architecture, with a cache on disk.
#![allow(unsafe_code)] // NVRTC's program handles

use std::ffi::CString;
use std::io::ErrorKind;
use std::path::PathBuf;

use cudarc::nvrtc::{result, sys};
use sha2::digest::Output;
use sha2::{Digest, Sha256};
use system::numbers::hexadecimal;
use system::private;

use super::error::{CudaError, Named, Result};
use crate::kernels::Family;

/// First bytes of a cached file. The number is the version of the format.
const MAGIC: &[u8] = b"plimsoll cubin 1\n";
/// Bytes of a SHA-256 digest.
const DIGEST: usize = 32;
/// Maximum size of a cached file in bytes.
const MOST_BYTES: u64 = 256 << 20;
/// Environment variable that sets the directory of compiled kernels.
pub const CACHE_VARIABLE: &str = "PLIMSOLL_CACHE_DIR";

/// Returns the architecture name of a compute capability. It enables architecture-specific instructions on
/// chips that have some (`sm_90a`).
pub fn architecture((major, minor): (u32, u32)) -> String {
    let own = if major == 9 { "a" } else { "" };
    format!("sm_{major}{minor}{own}")
}

/// Compiles a family to machine code for an architecture such as `sm_90a`. Needs NVRTC but no GPU.
pub fn compile(family: &Family, variant: usize, architecture: &str) -> Result<Vec<u8>> {
    let source = text(family.source)?;
    let name = text(&format!("{}.cu", family.name))?;
    let headers = family.headers.iter().map(|(_, source)| text(source)).collect::<Result<Vec<_>>>()?;
    let header_names = family.headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let mut program = std::ptr::null_mut();
    // SAFETY: every string is alive, ends with 0, and is copied by the call; the number of headers matches.
    unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            name.as_ptr(),
            i32::try_from(headers.len()).unwrap_or_default(),
            pointers(&headers).as_ptr(),
            pointers(&header_names).as_ptr(),
        )
    }
    .result()
    .named("nvrtcCreateProgram")?;
    let cubin = cubin(program, &options(family, variant, architecture));
    // SAFETY: the program was made above and is destroyed once.
    let destroyed = unsafe { result::destroy_program(program) }.named("nvrtcDestroyProgram");
    let cubin =
        cubin.map_err(|error| CudaError { text: format!("{}: {}", family.name, error.text), ..error })?;
    destroyed.map(|()| cubin)
}

fn cubin(program: sys::nvrtcProgram, options: &[String]) -> Result<Vec<u8>> {
    // SAFETY: the program is alive.
    let compiled = unsafe { result::compile_program(program, options) };
    if let Err(error) = compiled {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|c| c.cast_unsigned()).filter(|c| *c != 0).collect();
        let text = format!("{:?}\n{}", error.0, String::from_utf8_lossy(&log));
        return Err(CudaError { call: "nvrtcCompileProgram", code: error.0 as i64, text });
    }
    let mut size = 0;
    // SAFETY: the program is alive and compiled.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }.result().named("nvrtcGetCUBINSize")?;
    let mut cubin = vec![0_u8; size];
    // SAFETY: the buffer has the size that NVRTC reported.
    unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) }.result().named("nvrtcGetCUBIN")?;
    Ok(cubin)
}

fn text(text: &str) -> Result<CString> {
    let problem =
        |_| CudaError { call: "nvrtcCreateProgram", code: 0, text: "a source holds a zero byte".to_owned() };
    CString::new(text).map_err(problem)
}

fn options(family: &Family, variant: usize, architecture: &str) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "--extra-device-vectorization".to_owned(),
        "-default-device".to_owned(),
    ];
    let own = family.variants.get(variant).copied().unwrap_or_default();
    options.extend(family.constants.iter().chain(own).map(|(name, value)| format!("-D{name}={value}")));
    options
}

/// Returns whether NVRTC, the only requirement of [`compile`], can be opened.
pub fn compiler_is_there() -> bool {
    // SAFETY: opening the library runs its initialisers, which it is made for.
    unsafe { sys::is_culib_present() }
}

/// Returns NVRTC's major and minor version.
pub(crate) fn compiler_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is open (checked before), and the call writes two integers.
    let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    if status == sys::nvrtcResult::NVRTC_SUCCESS { (major, minor) } else { (0, 0) }
}

/// Returns the directory in [`CACHE_VARIABLE`], else `plimsoll` in the user's cache directory; `None` without
/// either.
pub fn user_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache"));
    let user = || variable("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("plimsoll"));
    variable(CACHE_VARIABLE).or_else(user)
}

/// On-disk cache of compiled kernels, keyed by everything that they were compiled from.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    directory: Option<PathBuf>,
}

impl Cache {
    /// Returns the cache in [`user_cache`]; without that directory, nothing is cached.
    pub(crate) fn of_user() -> Self {
        Cache { directory: user_cache().map(|base| base.join("kernels")) }
    }

    #[cfg(test)]
    pub(crate) fn at(directory: &std::path::Path) -> Self {
        Cache { directory: Some(directory.to_owned()) }
    }

    /// Returns the cached machine code for `key`, or calls `make` and caches its result. A damaged or foreign
    /// file is replaced.
    pub(crate) fn get_or_make(&self, key: &Key, make: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let Some(path) = self.directory.as_ref().map(|directory| directory.join(key.file_name())) else {
            return make();
        };
        // Machine code that another user could have written is not run.
        match private::read(&path, MOST_BYTES) {
            Ok(bytes) => {
                if let Some(cubin) = unwrap_file(&bytes) {
                    return Ok(cubin.to_vec());
                }
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                tracing::warn!("{}: the cache of compiled kernels is not used: {error}", path.display());
                return make();
            }
            Err(_) => {}
        }
        let cubin = make()?;
        // If the cache cannot be written, the next start compiles again.
        let _ = private::write(&path, &[MAGIC, Sha256::digest(&cubin).as_slice(), &cubin].concat());
        Ok(cubin)
    }
}

/// All inputs that determine the machine code.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    name: &'static str,
    digest: Output<Sha256>,
}

impl Key {
    pub(crate) fn from_source(family: &Family, variant: usize, architecture: &str) -> Self {
        let (major, minor) = compiler_version();
        let mut parts = options(family, variant, architecture);
        parts.extend(family.headers.iter().flat_map(|(name, text)| [*name, *text]).map(str::to_owned));
        parts.extend([family.source.to_owned(), format!("{major}.{minor}")]);
        let mut digest = Sha256::new();
        for part in parts {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        Key { name: family.name, digest: digest.finalize() }
    }

    fn file_name(&self) -> String {
        // 128 bits of the digest suffice to tell the keys of a folder apart.
        format!("{}-{}.cubin", self.name, hexadecimal(&self.digest[..16]))
    }
}

/// Returns the machine code in a cached file; `None` if the file is damaged.
fn unwrap_file(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, cubin) = bytes.strip_prefix(MAGIC)?.split_at_checked(DIGEST)?;
    (Sha256::digest(cubin).as_slice() == digest).then_some(cubin)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key() -> Key {
        Key { name: "some", digest: [7; DIGEST].into() }
    }

    #[test]
    fn cached_code_is_found_and_damaged_or_foreign_files_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let never = || -> Result<Vec<u8>> { panic!("it was kept") };
        assert_eq!(cache.get_or_make(&key(), || Ok(vec![1, 2, 3])).unwrap(), [1, 2, 3]);
        assert_eq!(cache.get_or_make(&key(), never).unwrap(), [1, 2, 3]);
        let path = directory.path().join(key().file_name());
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [&whole[..whole.len() - 1], &flipped, b"", b"\x7fELF something else"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get_or_make(&key(), || Ok(vec![4, 5])).unwrap(), [4, 5]);
            assert_eq!(cache.get_or_make(&key(), never).unwrap(), [4, 5]);
        }
        let files = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(files, 1, "nothing else is left behind");
    }

    #[test]
    fn files_writable_by_other_users_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        assert_eq!(cache.get_or_make(&key(), || Ok(vec![1])).unwrap(), [1]);
        let file = directory.path().join(key().file_name());
        for path in [directory.path(), &file] {
            let mode = |mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            for open in [0o777, 0o770] {
                mode(open);
                assert_eq!(cache.get_or_make(&key(), || Ok(vec![2])).unwrap(), [2], "{open:o}");
            }
            mode(0o700);
        }
        assert_eq!(cache.get_or_make(&key(), || Ok(vec![3])).unwrap(), [1]);
    }

    #[test]
    fn failed_compilations_are_not_cached() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path());
        let error = CudaError { call: "nvrtcCompileProgram", code: 6, text: "no".to_owned() };
        assert_eq!(cache.get_or_make(&key(), || Err(error.clone())), Err(error));
        assert_eq!(cache.get_or_make(&key(), || Ok(vec![1])).unwrap(), [1]);
    }
}
