//! Hugging Face folders: reading and writing weights.
//!
//! The one idea: **a tensor is read directly into its destination**. A folder is opened by its headers alone;
//! each rank then reads the rows that its own parameters need, in pieces of bounded length, and writing goes
//! tensor by tensor. No process holds a whole model.
//!
//! The model's family defines the tensors with their names and layouts ([`nn::HuggingFaceModel`]). This crate
//! reads and writes files.
//!
//! ```
//! let folder = pretrained::Folder::open("../../tests/golden/models/gpt2".as_ref())?;
//! for (name, tensor) in folder.tensors() {
//!     println!("{name}: {} {:?}", tensor.dtype(), tensor.shape());
//! }
//! assert!(folder.tensors().len() > 12);
//! # Ok::<(), pretrained::PretrainedError>(())
//! ```

mod copies;
mod error;
mod folder;
mod layout;
mod load;
mod model;
mod resized;
mod tensor_file;
mod write;

pub use copies::has_own_head;
pub use error::{PretrainedError, Result};
pub use folder::{ADAPTER_CONFIG, CONFIG, Folder};
pub use layout::in_form_of;
pub use model::PretrainedModel;
pub use tensor_file::StoredTensor;
pub use write::{Export, FolderKind, Load, write_folder};
