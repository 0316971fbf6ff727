// `candle:forest/random-forest` without libc: the same interface and the same bytes as ../../forest.
#include "../forest.hpp"

namespace {

// A `result` of this interface: its discriminant is one byte; the payload follows at the alignment of its largest case, 4.
struct Result {
    uint8_t is_err;
    union {
        struct {
            const void *ptr;
            size_t len;
            uint32_t reads, kernels; // of `trained`
        } ok;
        struct {
            const char *ptr;
            size_t len;
        } err;
    } of;
};
static_assert(sizeof(Result) == 20 && offsetof(Result, of) == 4, "a result is not laid out as the canonical ABI has it");

// What the last call returned: the host reads it before it calls again.
Result result;
forest::List<uint32_t> model_words;
forest::List<float> predictions;
forest::Error error;

Result *refused(const forest::Error &why) {
    error = why;
    result.is_err = 1;
    result.of.err = {error.text(), error.size()};
    return &result;
}

// Lists that the host passes are ours to free.
struct Passed {
    void *ptr;
    size_t len;
    ~Passed() {
        if (len) free(ptr);
    }
};

template <class Predict> Result *predicted(Passed bytes, Passed data, Predict predict) {
    forest::Error why;
    forest::Model model;
    forest::List<float> into;
    if (!model.read(static_cast<const uint8_t *>(bytes.ptr), bytes.len, why) ||
        !predict(model, static_cast<const float *>(data.ptr), data.len, into, why))
        return refused(why);
    predictions = static_cast<forest::List<float> &&>(into);
    result.is_err = 0;
    result.of.ok = {predictions.data(), predictions.size(), 0, 0};
    return &result;
}

} // namespace

#define EXPORT(name) extern "C" __attribute__((export_name("candle:forest/random-forest@0.1.0#" name)))

EXPORT("train")
Result *forest_train(uint32_t task, uint32_t trees, uint32_t max_depth, uint32_t max_features, uint32_t max_thresholds, uint32_t bootstrap,
                     uint32_t seed, uint32_t features, float *data, size_t data_len, float *labels, size_t label_count) {
    Passed passed_data = {data, data_len}, passed_labels = {labels, label_count};
    forest::Params params = {task == 1, trees, max_depth, max_features, max_thresholds, bootstrap != 0, seed};
    forest::Training training;
    if (!training.train(params, features, data, data_len, labels, label_count)) return refused(training.error);
    model_words = training.model.words();
    result.is_err = 0;
    result.of.ok = {model_words.data(), model_words.size() * 4, training.reads, training.kernels};
    return &result;
}

EXPORT("predict") Result *forest_predict(uint8_t *model, size_t model_len, float *data, size_t data_len) {
    return predicted({model, model_len}, {data, data_len}, forest::predict);
}

EXPORT("predict-by-average") Result *forest_predict_by_average(uint8_t *model, size_t model_len, float *data, size_t data_len) {
    return predicted({model, model_len}, {data, data_len}, forest::predict_by_average);
}
