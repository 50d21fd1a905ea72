//! Creates starting configurations, for a job on some data and device or from another trainer's file.
//!
//! The one idea: **a configuration is text that a person reads**. Recipes write a commented file with the
//! keys that such a user wants to see, and explain each value. Whether it fits is determined by planning,
//! never estimated.
//!
//! ```no_run
//! use recipes::{Directories, JobOptions, finetune, fit};
//!
//! let directories = Directories::of_file(Some("finetune.toml".as_ref()))?;
//! let data = vec!["conversations.jsonl".to_owned()];
//! let options = JobOptions { data, tokenizer: None, chat_template: None, half: Some("bf16"), directories };
//! let draft = finetune("Llama-3.2-1B-Instruct", false, &options)?;
//! let target = plan::PlanTarget::from_argument("rtx-4090")?;
//! let device = plan::PlanOptions { target, capacity: None };
//! let fitted = fit(&draft, options.directories.of_configuration(), &device, &mut |_| {})?;
//! print!("{}", fitted.document.to_toml());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod classify;
mod convert;
mod document;
mod draft;
mod error;
mod finetune;
mod fit;
mod found_data;
mod found_images;
mod model_folder;
mod paths;
mod pretrain;

pub use classify::classify;
pub use convert::{Conversion, Finding, Outcome, Program, convert};
pub use document::Document;
pub use draft::{Draft, JobOptions};
pub use error::{RecipeError, Result};
pub use finetune::finetune;
pub use fit::{Fitted, fit};
pub use found_data::{FoundData, find_data};
pub use found_images::{FoundImages, find_images};
pub use model_folder::ModelFolder;
pub use paths::Directories;
pub use pretrain::pretrain;
