//! Tests of images: CIFAR files and class folders, samples by number, validation.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use data::{Crop, IGNORED, ImageOptions, ImageSource, ImageSplit, MicroBatch, Normalisation, SHARES, Source};
use tempfile::TempDir;

/// Options without augmentation: samples are the images themselves.
const PLAIN: fn() -> ImageOptions = || ImageOptions {
    channels: 3,
    size: 32,
    classes: 10,
    micro_batch: 4,
    seed: 1,
    validation_micro_batches: 3,
    crop: Crop::Center,
    crop_padding: 4,
    flip: false,
    mean: vec![0.0],
    deviation: vec![1.0 / 255.0],
    skip_invalid: false,
    mixup: 0.0,
};
/// Number of values per image.
const IMAGE: usize = 32 * 32 * 3;

/// Writes CIFAR records: image `number` has the class `number % classes` and the pixels of [`value`].
fn write_cifar(path: &Path, numbers: std::ops::Range<usize>, labels: usize, classes: usize) {
    let mut bytes = Vec::new();
    for number in numbers {
        bytes.extend(std::iter::repeat_n(77, labels - 1));
        bytes.push((number % classes) as u8);
        for channel in 0..3 {
            bytes.extend((0..1024).map(|at| value(number, at % 32, at / 32, channel)));
        }
    }
    fs::write(path, bytes).unwrap();
}

/// Returns the value of a pixel's channel. The first pixel encodes the image's number.
fn value(number: usize, x: usize, y: usize, channel: usize) -> u8 {
    match (x, y) {
        (0, 0) => [number % 256, number / 256, 9][channel] as u8,
        _ => ((x * 3 + y * 5 + channel * 50 + number) % 256) as u8,
    }
}

/// Creates a CIFAR-10 folder with 30 training and 10 test images of 10 classes.
fn cifar() -> TempDir {
    let folder = TempDir::new().unwrap();
    write_cifar(&folder.path().join("data_batch_1.bin"), 0..20, 1, 10);
    write_cifar(&folder.path().join("data_batch_2.bin"), 20..30, 1, 10);
    write_cifar(&folder.path().join("test_batch.bin"), 100..110, 1, 10);
    folder
}

fn open(base: &Path, paths: &[&str]) -> Result<ImageSplit, data::Error> {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    ImageSplit::open(base, &paths, &[], 0.25)
}

fn source(base: &Path, options: ImageOptions) -> ImageSource {
    ImageSource::new(open(base, &["."]).unwrap(), options).unwrap()
}

fn train(source: &ImageSource, number: u64) -> MicroBatch {
    let mut batch = MicroBatch::default();
    source.train(number, &mut batch).unwrap();
    batch
}

fn validate(source: &ImageSource, index: u64) -> MicroBatch {
    let mut batch = MicroBatch::default();
    source.validation(index, &mut batch).unwrap();
    batch
}

/// Returns pixels and class of each sample in a micro-batch without mixup.
fn samples(batch: &MicroBatch) -> Vec<(Vec<f32>, u32)> {
    let each = batch.inputs.shape[1..].iter().product();
    let levels: Vec<f32> = batch.inputs.pixels().unwrap().iter().map(|level| f32::from(*level)).collect();
    let pixels = levels.chunks_exact(each).map(<[f32]>::to_vec).collect::<Vec<_>>().into_iter();
    pixels.zip(batch.targets.tokens().unwrap().iter().copied()).collect()
}

/// Returns the image's number, encoded in its first pixel.
fn number(pixels: &[f32]) -> usize {
    pixels[0].round() as usize + 256 * pixels[1].round() as usize
}

#[test]
fn files_of_cifar_are_read_pixel_by_pixel() {
    for (labels, classes, names) in
        [(1, 10, ["data_batch_1.bin", "test_batch.bin"]), (2, 100, ["train.bin", "test.bin"])]
    {
        let folder = TempDir::new().unwrap();
        write_cifar(&folder.path().join(names[0]), 0..13, labels, classes);
        write_cifar(&folder.path().join(names[1]), 13..16, labels, classes);
        let source = source(folder.path(), ImageOptions { classes, ..PLAIN() });
        assert_eq!((source.split().training_images(), source.split().validation_images()), (13, 3));
        let batch = train(&source, 0);
        assert_eq!(
            (batch.inputs.shape.as_slice(), batch.targets.shape.as_slice()),
            (&[4, 32, 32, 3][..], &[4][..])
        );
        for (pixels, class) in samples(&batch) {
            let number = number(&pixels);
            assert_eq!(class as usize, number % classes);
            for (at, actual) in pixels.iter().enumerate() {
                let expected = value(number, at / 3 % 32, at / 96, at % 3);
                assert!((actual - f32::from(expected)).abs() < 1e-3, "{number} {at}: {actual} {expected}");
            }
        }
        // Files may also be named one by one, and a fraction is then held out.
        let split = open(folder.path(), &[names[0]]).unwrap();
        assert_eq!((split.training_images(), split.validation_images()), (9, 4));
    }
}

#[test]
fn an_epoch_has_every_image_once_and_validation_too() {
    let folder = cifar();
    let source = source(folder.path(), ImageOptions { micro_batch: 3, ..PLAIN() });
    let epoch = |epoch: u64| -> Vec<usize> {
        (10 * epoch..10 * epoch + 10)
            .flat_map(|index| samples(&train(&source, index)))
            .map(|(pixels, _)| number(&pixels))
            .collect()
    };
    let first = epoch(0);
    let second = epoch(1);
    assert_ne!(first, second);
    for epoch in [first, second] {
        assert_eq!(epoch.into_iter().collect::<BTreeSet<_>>(), (0..30).collect());
    }
    let source = self::source(folder.path(), PLAIN());
    let held_out: Vec<_> = (0..3).flat_map(|index| samples(&validate(&source, index))).collect();
    let numbers: BTreeSet<_> = held_out[..10].iter().map(|(pixels, _)| number(pixels)).collect();
    assert_eq!(numbers, (100..110).collect());
    // The last micro-batch has two images more than there are.
    assert!(
        held_out[10..].iter().all(|(pixels, class)| *class == IGNORED && pixels.iter().all(|x| *x == 0.0))
    );
    assert!(source.validation(3, &mut MicroBatch::default()).is_err());
}

#[test]
fn a_sample_is_a_function_of_its_number() {
    let folder = cifar();
    for (crop, mixup) in [(Crop::Padded, 0.0), (Crop::Resized, 0.0), (Crop::Padded, 0.4)] {
        let options = |micro_batch| ImageOptions { crop, mixup, flip: true, micro_batch, ..PLAIN() };
        let [six, two, odd] = [6, 2, 3].map(|size| source(folder.path(), options(size)));
        let whole = |batches: Vec<MicroBatch>| -> (Vec<u8>, Vec<u32>) {
            let inputs = batches.iter().flat_map(|batch| batch.inputs.pixels().unwrap().to_vec()).collect();
            (inputs, batches.iter().flat_map(|batch| batch.targets.tokens().unwrap().to_vec()).collect())
        };
        let expected = whole(vec![train(&six, 7)]);
        assert_eq!(whole((21..24).map(|index| train(&two, index)).collect()), expected, "{crop:?} {mixup}");
        assert_eq!(whole((14..16).map(|index| train(&odd, index)).collect()), expected, "{crop:?} {mixup}");
        let other = source(folder.path(), ImageOptions { seed: 2, ..options(6) });
        assert_ne!(whole(vec![train(&other, 7)]), expected);
        assert_eq!(validate(&other, 0), validate(&six, 0));
    }
}

#[test]
fn padded_windows_show_the_image_moved_and_mirrored() {
    let folder = cifar();
    let options = ImageOptions { crop: Crop::Auto, flip: true, micro_batch: 30, ..PLAIN() };
    let source = source(folder.path(), options);
    let plain = self::source(folder.path(), ImageOptions { micro_batch: 30, ..PLAIN() });
    let mut moves = BTreeSet::new();
    let mut mirrored = 0;
    for epoch in 0..8 {
        for ((shown, _), (whole, _)) in
            samples(&train(&source, epoch)).iter().zip(samples(&train(&plain, epoch)))
        {
            let at = |flip: bool, dx: i64, dy: i64| {
                (0..IMAGE as i64).all(|index| {
                    let x = index / 3 % 32;
                    let y = index / 96;
                    let channel = index % 3;
                    let from_x = if flip { 31 - x } else { x } + dx;
                    let from_y = y + dy;
                    let inside = (0..32).contains(&from_x) && (0..32).contains(&from_y);
                    let expected =
                        if inside { whole[(96 * from_y + 3 * from_x + channel) as usize] } else { 0.0 };
                    shown[index as usize] == expected
                })
            };
            let positions = (-4..=4).flat_map(|dx| (-4..=4).map(move |dy| (dx, dy)));
            let candidates = positions.flat_map(|(dx, dy)| [(false, dx, dy), (true, dx, dy)]);
            let (flip, dx, dy) = candidates.into_iter().find(|(flip, dx, dy)| at(*flip, *dx, *dy)).unwrap();
            moves.insert((dx, dy));
            mirrored += usize::from(flip);
        }
    }
    // 240 samples over 81 offsets; five standard errors of half of them.
    assert!(moves.len() > 70, "{}", moves.len());
    assert!((81..=159).contains(&mirrored), "{mirrored}");
}

/// Writes a PNG of one colour with a brighter left half.
fn write_png(path: &Path, width: u32, height: u32, colour: [u8; 3]) {
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels: Vec<u8> = (0..width * height).flat_map(|_| colour).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
}

/// Creates a folder with `train` and `val` of the classes bird (red) and cat (green), some nested, of several
/// sizes.
fn folders() -> TempDir {
    let folder = TempDir::new().unwrap();
    for (part, count) in [("train", 6), ("val", 2)] {
        for (class, colour) in [("bird", [200, 10, 10]), ("cat", [10, 200, 10])] {
            let inner = folder.path().join(part).join(class).join("more");
            fs::create_dir_all(&inner).unwrap();
            for index in 0..count {
                let position =
                    if index % 2 == 0 { inner.clone() } else { inner.parent().unwrap().to_path_buf() };
                write_png(&position.join(format!("{index}.PNG")), 20 + 30 * index, 90, colour);
            }
            fs::write(inner.join("readme.txt"), "no image").unwrap();
        }
    }
    folder
}

#[test]
fn folders_are_classes_and_images_of_any_size_are_scaled() {
    let folder = folders();
    for crop in [Crop::Auto, Crop::Resized, Crop::Center] {
        let source = source(folder.path(), ImageOptions { crop, classes: 2, flip: true, ..PLAIN() });
        assert_eq!((source.split().training_images(), source.split().validation_images()), (12, 4));
        let mut counts = [0; 2];
        let batches = (0..3).map(|number| train(&source, number)).chain([validate(&source, 0)]);
        for (pixels, class) in batches.flat_map(|batch| samples(&batch)) {
            let colour = [[200.0, 10.0, 10.0], [10.0, 200.0, 10.0]][class as usize];
            let same = |pixel: &[f32]| pixel.iter().zip(colour).all(|(x, y)| (x - y).abs() < 1.0);
            assert!(pixels.chunks_exact(3).all(same), "{crop:?}: {:?}", &pixels[..3]);
            counts[class as usize] += 1;
        }
        assert_eq!(counts, [8, 8]);
    }
    // Without `train`, a fraction of all images is held out.
    let split = open(folder.path(), &["train"]).unwrap();
    assert_eq!((split.training_images(), split.validation_images(), split.classes()), (9, 3, 2));
}

#[test]
fn jpeg_files_of_every_kind_are_decoded() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pictures");
    for name in ["red_over_blue.jpg", "progressive.jpg", "cmyk.jpg", "grey.jpg"] {
        let folder = TempDir::new().unwrap();
        for part in ["train", "val"] {
            fs::create_dir_all(folder.path().join(part).join("a")).unwrap();
            // The contents tell the format, as in ImageNet, where a file has a wrong name.
            fs::copy(pictures.join(name), folder.path().join(part).join("a/image.png")).unwrap();
        }
        let options = ImageOptions { size: 40, classes: 1, micro_batch: 1, ..PLAIN() };
        let batch = validate(&source(folder.path(), options), 0);
        let (pixels, _) = &samples(&batch)[0];
        let pixel = |y: usize| [0, 1, 2].map(|channel| pixels[(y * 40 + 20) * 3 + channel]);
        let ([r, _, b], [lower_r, _, lower_b]) = (pixel(2), pixel(37));
        match name {
            "grey.jpg" => assert!((r - b).abs() < 1.0 && (r - lower_r).abs() > 10.0, "{r} {b} {lower_r}"),
            _ => assert!(r > b + 80.0 && lower_b > lower_r + 80.0, "{name}: {r} {b} {lower_r} {lower_b}"),
        }
    }
}

#[test]
fn a_corrupt_image_is_refused_by_name_or_skipped() {
    for damage in ["cut", "text", "empty", "a FIFO", "a socket", "a link to nothing"] {
        let folder = folders();
        let bad = folder.path().join("train/cat/1.PNG");
        let bytes = fs::read(&bad).unwrap();
        fs::remove_file(&bad).unwrap();
        match damage {
            "cut" => fs::write(&bad, &bytes[..bytes.len() / 2]).unwrap(),
            "text" => fs::write(&bad, "text").unwrap(),
            "empty" => fs::write(&bad, "").unwrap(),
            "a FIFO" => assert!(Command::new("mkfifo").arg(&bad).status().unwrap().success()),
            "a socket" => drop(UnixListener::bind(&bad).unwrap()),
            _ => symlink("nothing", &bad).unwrap(),
        }
        let options = ImageOptions { classes: 2, ..PLAIN() };
        let strict = source(folder.path(), options.clone());
        let mut batch = MicroBatch::default();
        let errors: Vec<_> = (0..3).filter_map(|number| strict.train(number, &mut batch).err()).collect();
        assert_eq!(errors.len(), 1);
        let text = errors[0].to_string();
        assert!(text.contains("train/cat/1.PNG is no image that can be used: "), "{text}");
        assert!(!damage.starts_with("a ") || text.contains(damage), "{text}");

        let skipping = || source(folder.path(), ImageOptions { skip_invalid: true, ..options.clone() });
        let one = skipping();
        let other = skipping();
        // Two epochs, the second of which meets it again.
        let all: Vec<_> = (0..6).map(|number| train(&one, number)).collect();
        assert_eq!((0..6).map(|number| train(&other, number)).collect::<Vec<_>>(), all);
        assert_eq!((one.skipped(), strict.skipped()), (1, 0));
    }
}

#[test]
fn mixtures_are_of_two_images_and_their_classes() {
    let folder = cifar();
    let mixed = source(folder.path(), ImageOptions { mixup: 1.0, ..PLAIN() });
    let plain = source(folder.path(), PLAIN());
    let mut shares = BTreeSet::new();
    for number in 0..15 {
        let batch = train(&mixed, number);
        let whole = samples(&train(&plain, number));
        assert_eq!(batch.targets.shape, [4, 3]);
        let pixels = batch.inputs.pixels().unwrap().chunks_exact(IMAGE);
        let targets = batch.targets.tokens().unwrap().chunks_exact(3);
        for (position, (pixels, target)) in pixels.zip(targets).enumerate() {
            let ((own, class), (other, other_class)) = (&whole[position], &whole[position ^ 1]);
            assert_eq!(target[..2], [*class, *other_class]);
            let share = f64::from(target[2]) / f64::from(SHARES);
            for (at, actual) in pixels.iter().enumerate() {
                let exact = share * f64::from(own[at]) + (1.0 - share) * f64::from(other[at]);
                assert!((f64::from(*actual) - exact).abs() < 0.51, "{actual} {exact}");
            }
            shares.insert(target[2]);
        }
    }
    assert!(shares.len() > 50, "{}", shares.len());
    // Validation has one class.
    let held_out = validate(&mixed, 0);
    assert!(held_out.targets.tokens().unwrap().chunks_exact(3).all(|t| t[0] == t[1] && t[2] == SHARES));
}

#[test]
fn channels_are_normalised_by_their_own_numbers() {
    let folder = cifar();
    let options = ImageOptions { mean: vec![0.5, 0.25, 0.0], deviation: vec![0.5, 0.2, 1.0], ..PLAIN() };
    let normal = source(folder.path(), options);
    let expected = Normalisation { mean: vec![0.5, 0.25, 0.0], deviation: vec![0.5, 0.2, 1.0] };
    assert_eq!(normal.normalisation(), Some(&expected));
    // One number is for all channels; the pixels themselves stay what they are.
    let one = ImageOptions { mean: vec![0.5], deviation: vec![0.5, 0.2, 1.0], ..PLAIN() };
    let expected = Normalisation { mean: vec![0.5; 3], ..expected };
    assert_eq!(source(folder.path(), one).normalisation(), Some(&expected));
    let plain = train(&source(folder.path(), PLAIN()), 0);
    assert_eq!(train(&normal, 0).inputs, plain.inputs);
    let grey = source(folder.path(), ImageOptions { channels: 1, ..PLAIN() });
    let batch = train(&grey, 0);
    assert_eq!(batch.inputs.shape, [4, 32, 32, 1]);
    let pixels = plain.inputs.pixels().unwrap().chunks_exact(3).zip(batch.inputs.pixels().unwrap());
    for (colour, grey) in pixels {
        let colour = [0, 1, 2].map(|at| f32::from(colour[at]));
        let grey = f32::from(*grey);
        let expected = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2];
        assert!((grey - expected).abs() < 0.6, "{grey} {expected}");
    }
}

#[test]
fn wrong_images_are_refused_in_a_sentence() {
    let cifar = cifar();
    let folders = folders();
    let odd = cifar.path().join("odd.bin");
    fs::write(&odd, vec![0; 4000]).unwrap();
    let refused = |base: &Path, paths: &[&str]| open(base, paths).unwrap_err().to_string();
    let empty = TempDir::new().unwrap();
    for (text, expected) in [
        (refused(cifar.path(), &["odd.bin"]), "its 4000 bytes are no multiple of 3073 (CIFAR-10) or 3074"),
        (refused(cifar.path(), &["none.bin"]), "there is no file "),
        (refused(cifar.path(), &["*.jpg"]), "matches no file"),
        (refused(empty.path(), &["."]), "it has no subfolder with JPEG or PNG files, one for each class"),
        (refused(folders.path(), &["train", "train/cat/1.PNG"]), "other paths are files of CIFAR"),
    ] {
        assert!(text.contains(expected), "{text}");
    }
    // Parts of a set by other names than those that are read.
    for names in [["Train", "Val"], ["test", "training"]] {
        for name in names {
            let class = empty.path().join(name).join("cat");
            fs::create_dir_all(&class).unwrap();
            write_png(&class.join("1.png"), 2, 2, [1; 3]);
        }
        let text = refused(empty.path(), &["."]);
        assert!(text.contains(&format!("its folders {} are no classes", names.join(", "))), "{text}");
        names.iter().for_each(|name| fs::remove_dir_all(empty.path().join(name)).unwrap());
    }
    // A class without an image, of which the others would have other numbers.
    let ape = folders.path().join("train/ape");
    fs::create_dir(&ape).unwrap();
    for (name, expected) in
        [("", "this class has no JPEG or PNG file: "), ("a.webp", "file (it has .webp (1)): ")]
    {
        if !name.is_empty() {
            fs::write(ape.join(name), "RIFF").unwrap();
        }
        let text = refused(folders.path(), &["."]);
        assert!(text.contains("train/ape: ") && text.contains(expected), "{text}");
    }
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    fs::write(ape.join("a.png"), pointer).unwrap();
    let text = refused(folders.path(), &["."]);
    assert!(text.contains("train/ape/a.png: it is a pointer of git-lfs"), "{text}");
    fs::remove_dir_all(&ape).unwrap();
    fs::create_dir(folders.path().join("val/dog")).unwrap();
    let text = refused(folders.path(), &["."]);
    assert!(text.contains("its folder 'dog' is no class of the training images"), "{text}");

    let cifar_source = |options| ImageSource::new(open(cifar.path(), &["."]).unwrap(), options);
    let text = cifar_source(ImageOptions { channels: 2, ..PLAIN() }).unwrap_err().to_string();
    assert!(text.contains("images have 1 or 3 channels"), "{text}");
    let few = cifar_source(ImageOptions { classes: 3, ..PLAIN() }).unwrap();
    let error = (0..8).find_map(|number| few.train(number, &mut MicroBatch::default()).err()).unwrap();
    assert!(error.to_string().contains("and the model has 3"), "{error}");
    fs::remove_dir(folders.path().join("val/dog")).unwrap();
    let split = open(folders.path(), &["."]).unwrap();
    let text = ImageSource::new(split, ImageOptions { classes: 1, ..PLAIN() }).unwrap_err().to_string();
    assert!(text.contains("the images have 2 folders of classes, and the model has 1"), "{text}");
}
