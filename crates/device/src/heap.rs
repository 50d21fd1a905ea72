//! The heap of this process, which is the C library's: what it keeps of freed memory.
#![allow(unsafe_code)] // the C library's allocator keeps memory by these options

/// Size from which the heap takes an allocation from the system and returns it at once.
#[cfg(target_env = "gnu")]
const RETURNED_FROM: libc::c_int = 2 << 20;

/// Makes the heap return large allocations as soon as they are freed, so that the memory of a process follows
/// from what it holds; glibc's own bounds grow with what was freed before. To be called once, at the start.
/// Elsewhere than with glibc this does nothing.
pub fn return_large() {
    #[cfg(target_env = "gnu")]
    for bound in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: the function sets a number of the heap, which any thread may do at any time.
        unsafe {
            libc::mallopt(bound, RETURNED_FROM);
        }
    }
}

/// Makes all threads share one arena of the heap; an arena of a thread's own reserves 64 MiB of addresses.
/// For processes with a limit on these. To be called before other threads start. Elsewhere than with glibc
/// this does nothing.
pub fn share_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function sets a number of the heap, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns the free pages of the heap to the system, so that memory of work that is done does not count for
/// what follows. Elsewhere than with glibc this does nothing.
pub fn return_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the locks of the heap that it needs, and moves no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}
