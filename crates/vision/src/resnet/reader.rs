//! The keys of a ResNet's `config.json`.

use nn::CONFIG_READER;
use system::readers::{FileKey, Reader, Unlisted};

/// Settings of ResNets.
pub(crate) const CONFIG: Reader = Reader {
    of: "`config.json` of a ResNet",
    keys: &[
        FileKey::known(&["num_classes", "num_channels", "image_size", "stem", "width"], "sizes"),
        FileKey::refused(
            &["model_args", "global_pool"],
            &["{}", "\"avg\""],
            "networks of torchvision's layout end in an average",
        ),
        FileKey::ignored(&["num_features", "pretrained_cfg"], "timm's notes about the training"),
    ],
    shared: &[&CONFIG_READER],
    unlisted: Unlisted::Other("Other keys are named in one line of the log."),
};
