//! Folders of Hugging Face: weights in and out.
//!
//! The one idea: **a tensor goes straight to where it is used**. A folder is opened by its headers alone;
//! each rank then reads the rows of the tensors that its own parameters consist of, in pieces of bounded
//! length, and writes go tensor by tensor. No process holds a whole model.
//!
//! Which tensors a model has, under which names and in which layout, its family says
//! ([`nn::HuggingFaceModel`]). This crate reads and writes files.
//!
//! ```no_run
//! let folder = pretrained::Folder::open("models/gpt2".as_ref())?;
//! for (name, tensor) in folder.tensors() {
//!     println!("{name}: {} {:?}", tensor.dtype(), tensor.shape());
//! }
//! # Ok::<(), pretrained::PretrainedError>(())
//! ```

mod error;
mod folder;
mod layout;
mod load;
mod model;
mod tensor_file;
mod write;

pub use error::{PretrainedError, Result};
pub use folder::{CONFIG, Folder};
pub use model::PretrainedModel;
pub use tensor_file::StoredTensor;
pub use write::{Export, Load, write_folder};
