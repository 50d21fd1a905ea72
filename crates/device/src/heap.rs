//! Settings of the process's heap (the C library's allocator) that limit how much freed memory it keeps.
#![allow(unsafe_code)] // the C library's allocator keeps memory by these options

/// Size in bytes from which an allocation is mapped from the system and returned to it when freed.
#[cfg(target_env = "gnu")]
const RETURNED_FROM: libc::c_int = 2 << 20;

/// Makes the heap return large allocations to the system as soon as they are freed, so that the process's
/// memory follows from what it holds; glibc's own threshold grows with what was freed before. Call once, at
/// the start. Does nothing without glibc.
pub fn return_large() {
    #[cfg(target_env = "gnu")]
    for bound in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: the function sets a number of the heap, which any thread may do at any time.
        unsafe {
            libc::mallopt(bound, RETURNED_FROM);
        }
    }
}

/// Makes all threads share one arena of the heap, for processes with a limit on addresses: each further arena
/// reserves 64 MiB of them. Call before other threads start. Does nothing without glibc.
pub fn share_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function sets a number of the heap, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns the heap's free pages to the system, so that memory of finished work is not counted later. Does
/// nothing without glibc.
pub fn return_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the locks of the heap that it needs, and moves no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}
