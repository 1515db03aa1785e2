//! What a model does meanwhile: bf16 matrix products, by a kernel of our own (`matmul.cu`). Where the device runs no kernels, memory is set.
#![expect(unsafe_code, reason = "running a kernel on memory of its own")]

use std::sync::Arc;

use terrace_kernels::cuda::{Driver, KernelHandle, code};
use terrace_kernels::{CopyError, CopyRun, Direction, StreamHandle};

/// `matmul.cu` as PTX for compute capability 8.0 and later.
const PTX: &str = include_str!("matmul.ptx");
const NAME: &std::ffi::CStr = c"terrace_matmul";
const THREADS: u32 = 256;
const TILE: usize = 128;

/// Products of a size, or what stands for them.
pub struct Model {
    driver: Arc<dyn Driver>,
    /// `None`: memory is set.
    kernel: Option<KernelHandle>,
    pub stream: StreamHandle,
    /// A (m x k), B (n x k) and C (m x n).
    memory: [usize; 3],
    size: [usize; 3],
}

/// Elements of A and B: small whole numbers, whose products and sums are exact.
const fn element(row: usize, column: usize, of: usize) -> usize {
    (row * 7 + column * 3 + of) % 5
}

/// A small whole number as bf16: the upper half of its 32-bit float.
fn bf16(value: usize) -> [u8; 2] {
    let [_, _, low, high] = (value as f32).to_le_bytes();
    [low, high]
}

impl Model {
    /// Products of m x k and n x k; m and n multiples of 128, k of 32.
    pub fn new(driver: &Arc<dyn Driver>, size: [usize; 3]) -> Result<Self, CopyError> {
        let [m, n, k] = size;
        let image = [PTX.as_bytes(), b"\0"].concat();
        let kernel = match driver.load_function(&image, NAME) {
            Ok(kernel) => Some(kernel),
            Err(error) if error.code == code::NOT_SUPPORTED => None,
            Err(error) => return Err(error.into()),
        };
        let stream = driver.create_stream()?;
        let mut model = Self { driver: Arc::clone(driver), kernel, stream, memory: [0; 3], size };
        for (place, bytes) in model.memory.iter_mut().zip([m * k * 2, n * k * 2, m * n * 4]) {
            *place = driver.allocate(bytes)?;
        }
        for (of, rows) in [m, n].into_iter().enumerate() {
            let bytes: Vec<u8> =
                (0..rows).flat_map(|row| (0..k).flat_map(move |column| bf16(element(row, column, of)))).collect();
            let run = CopyRun { src: bytes.as_ptr().addr(), dst: model.memory[of], len: bytes.len() };
            model.copy(Direction::HostToDevice, run)?;
        }
        Ok(model)
    }

    /// Whether these are products.
    pub const fn multiplies(&self) -> bool {
        self.kernel.is_some()
    }

    fn copy(&self, direction: Direction, run: CopyRun) -> Result<(), CopyError> {
        // SAFETY: the model's memory, and a vector of the caller's as long; waited for.
        unsafe {
            self.driver.copy(self.stream, direction, &[run])?;
            self.driver.drain(self.stream).map_err(CopyError::from)
        }
    }

    /// Puts a product into the stream.
    pub fn submit(&self) -> Result<(), CopyError> {
        let ([a, b, c], [m, n, k]) = (self.memory, self.size);
        let Some(kernel) = self.kernel else {
            // SAFETY: the model's memory.
            return unsafe { self.driver.fill(self.stream, c, m * n * 4, 1) }.map_err(CopyError::from);
        };
        let blocks = (m / TILE) * (n / TILE);
        let arguments = [a, b, c, m, n, k].map(|argument| argument as u64);
        // SAFETY: the kernel takes three addresses and three numbers; the memory has those sizes.
        unsafe { self.driver.launch_function(kernel, self.stream, blocks as u32, THREADS, &arguments) }
            .map_err(CopyError::from)
    }

    /// Floating-point operations of a product.
    pub fn operations(&self) -> f64 {
        self.size.iter().map(|length| *length as f64).product::<f64>() * 2.0
    }

    /// Whether a product is right, entry by entry.
    pub fn check(&self) -> Result<(), String> {
        let [m, n, k] = self.size;
        self.submit().map_err(|error| error.to_string())?;
        let mut found = vec![0_u8; m * n * 4];
        let run = CopyRun { src: self.memory[2], dst: found.as_mut_ptr().addr(), len: found.len() };
        self.copy(Direction::DeviceToHost, run).map_err(|error| error.to_string())?;
        for (at, bytes) in found.as_chunks::<4>().0.iter().enumerate() {
            let (row, column) = (at / n, at % n);
            let wanted: usize = (0..k).map(|step| element(row, step, 0) * element(column, step, 1)).sum();
            let found = f32::from_le_bytes(*bytes);
            if found != wanted as f32 {
                return Err(format!("row {row}, column {column} is {found}, not {wanted}"));
            }
        }
        Ok(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the model's own; the stream is drained first.
        unsafe {
            let _ = self.driver.drain(self.stream);
            self.driver.destroy_stream(self.stream);
            for address in self.memory.into_iter().filter(|address| *address > 0) {
                self.driver.free(address);
            }
            if let Some(kernel) = self.kernel {
                self.driver.unload_kernel(kernel);
            }
        }
    }
}
