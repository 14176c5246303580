// A typical program of the CUDA runtime: queries the memory, computes something, and allocates until it is refused. Prints one line of
// JSON like the test program `fill`, in bytes.
#include <cstdio>
#include <cuda_runtime.h>

__global__ void fill_with_index(unsigned *numbers, unsigned count) {
    unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < count) numbers[index] = index;
}

int main(int, char **arguments) {
    size_t free_bytes = 0, total = 0, chunk = 16 << 20, obtained = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total);
    size_t before = free_bytes;
    cudaDeviceProp properties = {};
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, 0);

    const unsigned count = 1 << 20;
    unsigned *numbers = nullptr, last = 0;
    if (error == cudaSuccess) error = cudaMalloc(&numbers, count * sizeof *numbers);
    if (error == cudaSuccess) {
        fill_with_index<<<count / 256, 256>>>(numbers, count);
        error = cudaMemcpy(&last, numbers + count - 1, sizeof last, cudaMemcpyDeviceToHost);
        obtained = count * sizeof *numbers;
    }
    bool right = last == count - 1;
    void *memory = nullptr;
    while (error == cudaSuccess && obtained < size_t(4) << 30) {
        error = cudaMalloc(&memory, chunk);
        if (error == cudaSuccess) obtained += chunk;
    }
    cudaGetLastError();
    // Its memory must still work after the refusal.
    bool alive = cudaMemset(numbers, 0, count * sizeof *numbers) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    cudaMemGetInfo(&free_bytes, &total);
    printf("{\"api\":\"%s\",\"obtained\":%zu,\"error\":\"%s\",\"free\":%zu,\"free_before\":%zu,\"total\":%zu,\"property_total\":%zu,"
           "\"works\":%s}\n",
           arguments[0], obtained, cudaGetErrorName(error), free_bytes, before, total, properties.totalGlobalMem,
           right && alive ? "true" : "false");
    return 0;
}
