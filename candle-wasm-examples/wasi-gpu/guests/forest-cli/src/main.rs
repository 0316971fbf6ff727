//! Trains a forest of a CSV file, tries it on rows that it has not seen, and prints one line of JSON.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use serde::Serialize;
use wasi_gpu_trees::{gpu::compute::get_device_info, predict, train, Params, Task};

/// Trains a random forest of a CSV file with the host's device.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A line of names, then numbers. The last column is the label.
    file: PathBuf,
    /// The kind of the label.
    #[arg(long, value_enum, default_value_t = Kind::Regression)]
    task: Kind,
    #[arg(long, default_value_t = 200)]
    trees: u32,
    #[arg(long, default_value_t = 16)]
    max_depth: u32,
    /// Features tried at a node; 0: the root of their number.
    #[arg(long, default_value_t = 0)]
    max_features: u32,
    /// Thresholds tried for a feature at a node; 0: all.
    #[arg(long, default_value_t = 0)]
    max_thresholds: u32,
    /// The seed of the draws, and of the split into training rows and a fifth of test rows.
    #[arg(long, default_value_t = 42)]
    seed: u32,
    /// Every tree sees each row once.
    #[arg(long)]
    no_bootstrap: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Regression,
    Classification,
}

#[derive(Serialize)]
struct Report {
    language: &'static str,
    gpu_device: String,
    gpu_backend: String,
    features: u32,
    train_rows: usize,
    test_rows: usize,
    trees: u32,
    nodes: usize,
    depth: u32,
    reads: u32,
    kernels: u32,
    training_ms: f64,
    inference_ms: f64,
    /// Mean squared error of all outputs over the test rows.
    mse: f64,
    /// Accuracy over the test rows, for classes.
    accuracy: Option<f64>,
    /// FNV-1a of the model's bytes.
    hash: String,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("forest-cli: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<String, Box<dyn Error>> {
    let table = Table::read(&args.file)?;
    let (test, train_rows) = table.split(args.seed);
    let (data, labels) = table.rows(&train_rows);
    let (test_data, test_labels) = table.rows(&test);
    let params = Params {
        task: match args.task {
            Kind::Regression => Task::Regression,
            Kind::Classification => Task::Classification,
        },
        trees: args.trees,
        max_depth: args.max_depth,
        max_features: args.max_features,
        max_thresholds: args.max_thresholds,
        bootstrap: !args.no_bootstrap,
        seed: args.seed,
    };
    let device = get_device_info();

    let start = Instant::now();
    let trained = train(&params, table.features, &data, &labels)?;
    let training_ms = start.elapsed().as_secs_f64() * 1e3;
    let model = trained.model;

    let start = Instant::now();
    let outputs = predict(&model, &test_data)?;
    let inference_ms = start.elapsed().as_secs_f64() * 1e3;

    let (mse, accuracy) = errors(params.task, &outputs, &test_labels);
    Ok(serde_json::to_string(&Report {
        language: "rust",
        gpu_device: device.name,
        gpu_backend: device.backend,
        features: table.features,
        train_rows: train_rows.len(),
        test_rows: test.len(),
        trees: args.trees,
        nodes: model.nodes.len(),
        depth: model.depth,
        reads: trained.reads,
        kernels: trained.kernels,
        training_ms,
        inference_ms,
        mse,
        accuracy,
        hash: format!("{:016x}", fnv(&model.to_bytes())),
    })?)
}

/// A CSV file's numbers.
struct Table {
    features: u32,
    /// Row-major, without the labels.
    data: Vec<f32>,
    labels: Vec<f32>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_path(path)
            .map_err(|error| at(&error))?;
        let columns = reader.headers().map_err(|error| at(&error))?.len();
        if columns < 2 {
            return Err(at(&"it takes a feature and a label, at least").into());
        }
        let mut table = Self {
            features: columns as u32 - 1,
            data: Vec::new(),
            labels: Vec::new(),
        };
        for record in reader.deserialize::<Vec<f32>>() {
            let mut row = record.map_err(|error| at(&error))?;
            table.labels.extend(row.pop());
            table.data.extend(row);
        }
        if table.labels.len() < 2 {
            return Err(at(&"it takes 2 rows: one to train on, one to try").into());
        }
        Ok(table)
    }

    /// A fifth of the rows, rounded up, and the others; shuffled.
    fn split(&self, seed: u32) -> (Vec<usize>, Vec<usize>) {
        let count = self.labels.len();
        let mut order = (0..count).collect::<Vec<_>>();
        let mut state = seed;
        for i in 0..count {
            state = wasi_gpu_trees::hash(state);
            let pick = wasi_gpu_trees::below(state, (count - i) as u32);
            order.swap(i, i + pick as usize);
        }
        let train = order.split_off(count.div_ceil(5));
        (order, train)
    }

    fn rows(&self, rows: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let width = self.features as usize;
        let data = rows
            .iter()
            .flat_map(|row| &self.data[row * width..][..width])
            .copied()
            .collect();
        (data, rows.iter().map(|&row| self.labels[row]).collect())
    }
}

/// The mean squared error; and of classes, the share of rows whose largest output is the right one.
fn errors(task: Task, outputs: &[f32], labels: &[f32]) -> (f64, Option<f64>) {
    let width = outputs.len() / labels.len();
    let (mut squares, mut right) = (0.0, 0);
    for (row, &label) in outputs.chunks_exact(width).zip(labels) {
        let mut best = 0;
        for (i, &output) in row.iter().enumerate() {
            let wanted = match task {
                Task::Regression => label,
                Task::Classification => f32::from(label == i as f32),
            };
            squares += (f64::from(output) - f64::from(wanted)).powi(2);
            if output > row[best] {
                best = i;
            }
        }
        right += usize::from(label == best as f32);
    }
    let accuracy = match task {
        Task::Regression => None,
        Task::Classification => Some(right as f64 / labels.len() as f64),
    };
    (squares / outputs.len() as f64, accuracy)
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
