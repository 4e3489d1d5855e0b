#include "pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace dualpath {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto spin_time = std::chrono::microseconds(30);  // between the two parallel parts of a call, and layers

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

template <class Ready>
bool spin_until(Ready ready) {
    const auto end = Clock::now() + spin_time;
    do {
        for (int i = 0; i < 32; i++) {
            if (ready()) return true;
            pause();
        }
    } while (Clock::now() < end);
    return ready();
}

class Pool {
public:
    bool try_run(int items, int chunk, int threads, void (*work)(void *, int, int), void *context) {
        std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        grow(threads - 1);
        items_ = items;
        chunk_ = chunk;
        work_ = work;
        context_ = context;
        next_.store(0, std::memory_order_relaxed);
        const int helpers = std::min<int>(threads - 1, workers_);
        seats_.store(helpers, std::memory_order_relaxed);
        // Opening the job publishes the fields above. A worker that wakes late finds it closed, and nobody waits for
        // it.
        gate_.fetch_add(open_bit, std::memory_order_seq_cst);
        if (sleeping_.load(std::memory_order_seq_cst) > 0) {
            std::lock_guard<std::mutex> lock(sleep_);
            wake_.notify_all();
        }
        drain();
        gate_.fetch_sub(open_bit, std::memory_order_acq_rel);
        auto idle = [&] { return gate_.load(std::memory_order_acquire) == 0; };
        if (!spin_until(idle)) {
            std::unique_lock<std::mutex> lock(sleep_);
            waiting_ = true;
            done_.wait(lock, idle);
            waiting_ = false;
        }
        return true;
    }

private:
    static constexpr int open_bit = 1 << 20;  // gate_: this bit while a job may be joined, plus the number that joined

    void drain() {
        for (;;) {
            int begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
            if (begin >= items_) return;
            work_(context_, begin, std::min<int>(begin + chunk_, items_));
        }
    }

    bool join() {
        int gate = gate_.load(std::memory_order_acquire);
        while (gate >= open_bit)
            if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) {
                if (seats_.fetch_sub(1, std::memory_order_relaxed) > 0) return true;
                leave();
                return false;
            }
        return false;
    }

    void leave() {
        if (gate_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            std::lock_guard<std::mutex> lock(sleep_);
            if (waiting_) done_.notify_one();
        }
    }

    // A job worth joining: open, with a seat left and work left.
    bool wanted() const {
        return gate_.load(std::memory_order_seq_cst) >= open_bit && seats_.load(std::memory_order_relaxed) > 0 &&
               next_.load(std::memory_order_relaxed) < items_.load(std::memory_order_relaxed);
    }

    void worker() {
        for (;;) {
            if (!spin_until([&] { return wanted(); })) {
                std::unique_lock<std::mutex> lock(sleep_);
                sleeping_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock, [&] { return wanted(); });
                sleeping_.fetch_sub(1, std::memory_order_relaxed);
            }
            if (join()) {
                drain();
                leave();
            }
        }
    }

    void grow(int wanted) {
        try {
            while (workers_ < wanted) {
                std::thread([this] { worker(); }).detach();
                workers_++;
            }
        } catch (const std::system_error &) {  // no more threads to be had: go on with those there are
        }
    }

    std::mutex owner_, sleep_;
    std::condition_variable wake_, done_;
    std::atomic<int> gate_{0}, next_{0}, seats_{0}, sleeping_{0}, items_{0};
    bool waiting_ = false;
    int workers_ = 0, chunk_ = 1;
    void (*work_)(void *, int, int) = nullptr;
    void *context_ = nullptr;
};

// Never destroyed: workers sleep in it until the process ends. A forked child has none of the threads, so it starts
// with a new pool.
std::atomic<Pool *> pool{nullptr};

Pool &shared_pool() {
    static std::once_flag once;
    std::call_once(once, [] {
        pool = new Pool;
        pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    });
    return *pool;
}

struct Space {
    float *data = nullptr;
    size_t floats = 0;
    ~Space() { std::free(data); }
};

}  // namespace

void parallel(int items, int chunk, int threads, void (*work)(void *, int, int), void *context) {
    if (items <= 0) return;
    threads = std::min(threads, (items + chunk - 1) / chunk);
    if (threads <= 1 || !shared_pool().try_run(items, chunk, threads, work, context)) work(context, 0, items);
}

float *thread_scratch(size_t floats) {
    thread_local Space space;
    if (floats > space.floats) {
        std::free(space.data);
        space.data = nullptr;
        space.floats = 0;
        size_t bytes = (floats * sizeof(float) + 4095) / 4096 * 4096;
        space.data = static_cast<float *>(std::aligned_alloc(4096, bytes));
        if (!space.data) std::abort();  // a run of keys, not a block: nothing sensible can go on from here
        space.floats = bytes / sizeof(float);
    }
    return space.data;
}

}  // namespace dualpath
