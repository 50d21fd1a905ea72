//! Compares a folder's tensors with a model's.

use std::collections::BTreeSet;

use device::DType;
use nn::{FolderTensor, HuggingFaceModel};

use crate::error::{PretrainedError, Result};
use crate::folder::Folder;
use crate::resized::is_shorter;

/// Returns `model` with the list of tensors that the folder has, if it is one of the model's variants.
#[must_use]
pub fn in_form_of(folder: &Folder, mut model: HuggingFaceModel) -> HuggingFaceModel {
    let is_there = |tensor: &FolderTensor| {
        let found = folder.find(&tensor.name, model.prefix);
        let is_table = model.tables.contains(&tensor.name.as_str());
        let is_of_module = model.modules.iter().any(|prefix| tensor.parameter.starts_with(prefix.as_str()));
        found.map_or(is_of_module, |(_, stored)| is_table || stored.shape() == tensor.shape)
    };
    let is_form = |tensors: &Vec<FolderTensor>| tensors.iter().all(is_there);
    if !is_form(&model.tensors)
        && let Some(own) = model.variants.iter().position(is_form)
    {
        std::mem::swap(&mut model.tensors, &mut model.variants[own]);
    }
    model
}

/// Checks that a folder has all tensors of a model in their shapes, and no others. With `resizes`, token
/// tables may have fewer rows.
///
/// # Errors
/// The name of the first tensor that is missing, unexpected or of another shape.
pub(crate) fn check(folder: &Folder, model: &HuggingFaceModel, resizes: bool) -> Result<()> {
    let refused = |what: String| PretrainedError::refused(folder.path(), what);
    let mut used = BTreeSet::new();
    let mut missing = Vec::new();
    for tensor in &model.tensors {
        let Some((name, stored)) = folder.find(&tensor.name, model.prefix) else {
            missing.push(tensor.name.as_str());
            continue;
        };
        used.insert(name);
        let is_shorter = is_shorter(tensor, stored, model);
        if stored.shape() != tensor.shape && !(resizes && is_shorter) {
            let there = stored.shape();
            let here = &tensor.shape;
            let advice = match is_shorter {
                true => ": model.resize_vocabulary = true adds the rows of new tokens",
                false => "",
            };
            return Err(refused(format!("{name} is {there:?} there and {here:?} in this model{advice}")));
        }
        if (stored.dtype() == DType::U32) != tensor.counter {
            let is = if tensor.counter { "a count in I64" } else { "floating-point" };
            return Err(refused(format!("{name} is {} there and {is} in this model", stored.dtype())));
        }
    }
    if let Some(names) = some_of(&missing) {
        return Err(refused(format!("it has no {names}")));
    }
    let is_ignored = |name: &str| model.ignored.iter().any(|end| name.ends_with(end));
    let carried = folder.carried(model);
    let is_copy = |name: &str| model.copies.iter().any(|(copy, _)| copy == name);
    let is_known =
        |name: &str| used.contains(name) || is_ignored(name) || is_copy(name) || carried.contains_key(name);
    let others = folder.tensors().keys().map(String::as_str);
    let unexpected: Vec<_> = others.filter(|name| !is_known(name)).collect();
    match some_of(&unexpected) {
        Some(names) => Err(refused(format!("this model has no {names}"))),
        None => Ok(()),
    }
}

/// Formats the start of a list: `a, b and 7 more`; `None` if it is empty.
fn some_of(names: &[&str]) -> Option<String> {
    const SHOWN: usize = 3;
    let shown = names.get(..names.len().min(SHOWN)).filter(|shown| !shown.is_empty())?.join(", ");
    Some(match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    })
}
