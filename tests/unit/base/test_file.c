// Files: errors (absent, blocked, disk full, locked) name the path, and a failed write keeps the old file.
#include "tests/support/expect.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

static char folder[256];

static int make_folder(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/zero-file-XXXXXX", parent ? parent : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return file_remove_tree(folder) == STATUS_OK && !file_exists(folder) ? 0 : -1;
}

// A path in the test folder; the string is reused by the fourth call after this one.
static const char *in_folder(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void expect_content(const char *path, const char *content) {
    char *data;
    size_t bytes;
    EXPECT_OK(file_read(path, 1000, &data, &bytes));
    assert_int_equal(bytes, strlen(content));
    assert_string_equal(data, content);
    free(data);
}

static int entries(const char *path) {
    struct file_list list = {0};
    EXPECT_OK(file_list_folder(&list, path));
    int n = list.n_paths;
    file_list_free(&list);
    return n;
}

static void test_read(void **state) {
    (void)state;
    char *data;
    size_t bytes;
    EXPECT_OK(file_write_all(in_folder("a"), "hello", 5));
    expect_content(in_folder("a"), "hello");
    EXPECT_OK(file_write_all(in_folder("empty"), "", 0));
    expect_content(in_folder("empty"), "");
    EXPECT_OK(file_read("/proc/self/status", 100000, &data, &bytes)); // its size is reported as 0
    assert_true(bytes > 100 && strlen(data) == bytes);
    free(data);
    EXPECT_FAILURE(STATUS_INVALID, file_read(in_folder("b"), 9, &data, &bytes), folder, "/b", "No such file");
    EXPECT_FAILURE(STATUS_INVALID, file_read(folder, 9, &data, &bytes), folder, "is a folder");
    EXPECT_FAILURE(STATUS_INVALID, file_read(in_folder("a"), 4, &data, &bytes), "/a", "5 bytes", "at most 4");
    EXPECT_FAILURE(STATUS_INVALID, file_read("/proc/self/status", 10, &data, &bytes), "too large",
                   "at most 10 bytes");
}

static void test_read_at(void **state) {
    (void)state;
    int descriptor;
    char bytes[10] = "";
    EXPECT_OK(file_write_all(in_folder("a"), "0123456789", 10));
    EXPECT_OK(file_open_regular(in_folder("a"), O_RDONLY, &descriptor));
    assert_int_equal(file_read_at(descriptor, 3, 7, bytes), 0);
    assert_memory_equal(bytes, "3456789", 8);
    assert_int_equal(file_read_at(descriptor, 10, 0, bytes), 0);
    assert_int_equal(file_read_at(descriptor, 3, 8, bytes), FILE_READ_SHORT);
    assert_int_equal(file_read_at(-1, 0, 1, bytes), EBADF);
    assert_int_equal(truncate(in_folder("a"), 5), 0); // while it is open
    assert_int_equal(file_read_at(descriptor, 3, 7, bytes), FILE_READ_SHORT);
    close(descriptor);
}

static void test_write(void **state) {
    (void)state;
    struct file_writer writer;
    EXPECT_OK(file_write_all(in_folder("a"), "old", 3));
    EXPECT_OK(file_writer_open(&writer, in_folder("a")));
    file_write(&writer, "new ", 4);
    expect_content(in_folder("a"), "old"); // unchanged until the commit
    file_write(&writer, "text", 4);
    assert_int_equal(writer.bytes, 8);
    EXPECT_OK(file_commit(&writer));
    file_discard(&writer);
    expect_content(in_folder("a"), "new text");
    EXPECT_OK(file_writer_open(&writer, in_folder("a")));
    file_write(&writer, "unwanted", 8);
    file_discard(&writer);
    expect_content(in_folder("a"), "new text");
    assert_int_equal(entries(folder), 1); // nothing temporary is left

    EXPECT_FAILURE(STATUS_FAILED, file_writer_open(&writer, in_folder("none/a")), "/none/a", "No such file");
    EXPECT_FAILURE(STATUS_INVALID, file_write_all(folder, "x", 1), folder, "is a folder");
}

// Disk full at the flush (/dev/full), and during a write (a limit on file size).
static void test_disk_full(void **state) {
    (void)state;
    struct file_writer writer;
    EXPECT_OK(file_write_all(in_folder("a"), "good", 4));
    EXPECT_OK(file_writer_open(&writer, in_folder("a")));
    fclose(writer.stream);
    writer.stream = fopen("/dev/full", "wb");
    assert_non_null(writer.stream);
    file_write(&writer, "0123456789", 10);
    EXPECT_FAILURE(STATUS_FAILED, file_commit(&writer), "/a", strerror(ENOSPC));
    expect_content(in_folder("a"), "good");

    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    static char block[30000];
    enum status status = file_writer_open(&writer, in_folder("a"));
    for (int i = 0; status == STATUS_OK && i < 10; i++)
        file_write(&writer, block, sizeof block);
    if (status == STATUS_OK)
        status = file_commit(&writer);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    EXPECT_FAILURE(STATUS_FAILED, status, "/a", strerror(EFBIG));
    expect_content(in_folder("a"), "good");
    assert_int_equal(entries(folder), 1);
}

static void test_folders(void **state) {
    (void)state;
    EXPECT_OK(file_make_folders(in_folder("x/y//z/")));
    EXPECT_OK(file_make_folders(in_folder("x/y/z")));
    assert_true(file_is_folder(in_folder("x/y/z")) && !file_is_folder(in_folder("x/w")));
    EXPECT_OK(file_make_folders("/"));
    EXPECT_FAILURE(STATUS_INVALID, file_make_folders(""), "cannot create the folder");
    EXPECT_OK(file_write_all(in_folder("x/file"), "1", 1));
    EXPECT_FAILURE(STATUS_INVALID, file_make_folders(in_folder("x/file")), "x/file");
    EXPECT_FAILURE(STATUS_INVALID, file_make_folders(in_folder("x/file/deeper")), "x/file");
    EXPECT_OK(file_sync_folder(in_folder("x")));
    EXPECT_FAILURE(STATUS_FAILED, file_sync_folder(in_folder("none")), "/none");
    EXPECT_OK(file_rename(in_folder("x"), in_folder("renamed")));
    assert_true(file_exists(in_folder("renamed/file")));
    EXPECT_FAILURE(STATUS_FAILED, file_rename(in_folder("x"), in_folder("w")), "/x", "/w");
}

// A link inside a tree is removed, its target is kept.
static void test_remove_tree(void **state) {
    (void)state;
    EXPECT_OK(file_make_folders(in_folder("kept")));
    EXPECT_OK(file_write_all(in_folder("kept/file"), "1", 1));
    EXPECT_OK(file_make_folders(in_folder("gone/deep/deeper")));
    EXPECT_OK(file_write_all(in_folder("gone/deep/file"), "1", 1));
    assert_int_equal(symlink(in_folder("kept"), in_folder("gone/deep/link")), 0);
    EXPECT_OK(file_remove_tree(in_folder("gone")));
    assert_false(file_exists(in_folder("gone")));
    assert_true(file_exists(in_folder("kept/file")));
    EXPECT_OK(file_remove_tree(in_folder("gone")));
    EXPECT_OK(file_remove_tree(in_folder("kept/file")));
    assert_false(file_exists(in_folder("kept/file")));
}

static void test_glob(void **state) {
    (void)state;
    static const char *const names[] = {"s-2.bin", "s-10.bin", "s-1.bin", "other", "s-[x].bin"};
    for (int i = 0; i < 5; i++)
        EXPECT_OK(file_write_all(in_folder(names[i]), "", 0));
    struct file_list list = {0};
    EXPECT_OK(file_glob(&list, in_folder("other")));
    EXPECT_OK(file_glob(&list, in_folder("s-*.bin")));
    EXPECT_OK(file_glob(&list, in_folder("s-[x].bin"))); // a name that looks like a pattern
    static const char *const expected[] = {"other",   "s-1.bin",   "s-10.bin",
                                           "s-2.bin", "s-[x].bin", "s-[x].bin"};
    assert_int_equal(list.n_paths, 6);
    for (int i = 0; i < 6; i++)
        assert_string_equal(list.paths[i], in_folder(expected[i]));
    EXPECT_FAILURE(STATUS_INVALID, file_glob(&list, in_folder("t-*.bin")), "no file matches", "t-*.bin");
    EXPECT_FAILURE(STATUS_INVALID, file_glob(&list, in_folder("none")), "/none");
    file_list_free(&list);
    EXPECT_OK(file_list_folder(&list, folder));
    assert_int_equal(list.n_paths, 5);
    assert_string_equal(list.paths[0], "other");
    assert_string_equal(list.paths[1], "s-1.bin");
    file_list_free(&list);
    EXPECT_FAILURE(STATUS_INVALID, file_list_folder(&list, in_folder("none")), "/none");
}

static void test_lock(void **state) {
    (void)state;
    int ready[2], descriptor;
    char byte, holder[32];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int own;
        byte = file_lock(in_folder("lock"), &own) == STATUS_OK ? 'y' : 'n';
        if (write(ready[1], &byte, 1) == 1)
            pause();
        _exit(0);
    }
    bool answered = read(ready[0], &byte, 1) == 1;
    enum status second = file_lock(in_folder("lock"), &descriptor);
    const bool was_locked = file_is_locked(in_folder("lock"));
    kill(child, SIGKILL); // its death releases the lock, and no child outlives a failing test
    waitpid(child, NULL, 0);
    assert_true(answered && byte == 'y');
    assert_true(was_locked);
    assert_false(file_is_locked(in_folder("lock")));
    assert_false(file_is_locked(in_folder("none/lock")));
    snprintf(holder, sizeof holder, "process %ld", (long)child);
    EXPECT_FAILURE(STATUS_INVALID, second, "/lock", holder, "in use");
    assert_int_equal(descriptor, -1);
    close(ready[0]);
    close(ready[1]);
    EXPECT_OK(file_lock(in_folder("lock"), &descriptor));
    snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    expect_content(in_folder("lock"), holder);
    file_unlock(&descriptor);
    file_unlock(&descriptor);
    EXPECT_OK(file_lock(in_folder("lock"), &descriptor));
    file_unlock(&descriptor);
    EXPECT_FAILURE(STATUS_INVALID, file_lock(in_folder("none/lock"), &descriptor), "/none/lock");
}

// Opening a FIFO never blocks, and devices are neither read nor replaced. The alarm ends a test that blocks.
static void test_regular_files_only(void **state) {
    (void)state;
    char *data;
    size_t bytes;
    int descriptor;
    FILE *stream;
    struct file_writer writer;
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(symlink("/dev/zero", in_folder("zero")), 0);
    static const char *const names[] = {"fifo", "zero"}, *const kinds[] = {"is a FIFO", "is a device"};
    alarm(20);
    for (int i = 0; i < 2; i++) {
        const char *path = in_folder(names[i]);
        EXPECT_FAILURE(STATUS_INVALID, file_read(path, 1000, &data, &bytes), path, kinds[i], "regular file");
        EXPECT_FAILURE(STATUS_INVALID, file_open_regular(path, O_RDONLY, &descriptor), path, kinds[i]);
        EXPECT_FAILURE(STATUS_INVALID, file_append_open(path, &stream), path, kinds[i]);
        EXPECT_FAILURE(STATUS_INVALID, file_writer_open(&writer, path), path, kinds[i]);
        EXPECT_FAILURE(STATUS_INVALID, file_lock(path, &descriptor), path, kinds[i]);
        assert_int_equal(descriptor, -1);
    }
    alarm(0);
    assert_int_equal(entries(folder), 2);
    EXPECT_OK(file_append_open(in_folder("text"), &stream));
    fputs("one ", stream);
    fclose(stream);
    EXPECT_OK(file_append_open(in_folder("text"), &stream));
    fputs("two", stream);
    fclose(stream);
    expect_content(in_folder("text"), "one two");
}

// Whole or not at all: of data that does not fit, nothing stays.
static void test_append(void **state) {
    (void)state;
    struct rlimit before;
    int descriptor;
    const char *path = in_folder("appended");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_OK(file_open_regular(path, O_WRONLY | O_CREAT | O_APPEND, &descriptor));
    EXPECT_OK(file_append(descriptor, path, "one ", 4));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){6, before.rlim_max}), 0);
    EXPECT_FAILURE(STATUS_FAILED, file_append(descriptor, path, "three", 5), path, "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    expect_content(path, "one ");
    EXPECT_OK(file_append(descriptor, path, "two", 3));
    expect_content(path, "one two");
    close(descriptor);
}

// What waits for the disk is known while it does, and of two the first.
static void test_waiting_for_the_disk(void **state) {
    char path[8];
    double since_s;
    (void)state;
    assert_false(file_disk_waits(path, sizeof path, &since_s));
    const bool first = file_disk_begin("one/path"), second = file_disk_begin("two");
    assert_true(file_disk_waits(path, sizeof path, &since_s));
    assert_string_equal(path, "one/pat");
    file_disk_end(&second);
    assert_true(file_disk_waits(path, sizeof path, &since_s));
    file_disk_end(&first);
    assert_false(file_disk_waits(path, sizeof path, &since_s));
}

// A path given by the user may be a pipe.
static void test_read_stream(void **state) {
    (void)state;
    int ends[2];
    char path[32], *data;
    size_t bytes;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "piped", 5), 5);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    EXPECT_OK(file_read_stream(path, 100, &data, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(data, "piped");
    free(data);
    close(ends[0]);
    EXPECT_FAILURE(STATUS_INVALID, file_read_stream("/dev/zero", 1000, &data, &bytes), "too large",
                   "at most 1000 bytes");
    EXPECT_FAILURE(STATUS_INVALID, file_read_stream(folder, 1000, &data, &bytes), "is a folder");
    EXPECT_FAILURE(STATUS_INVALID, file_read_stream(in_folder("none"), 9, &data, &bytes), "No such file");
}

// Others may know the name of the temporary file, in a folder that they may write too.
static void test_links_of_others(void **state) {
    (void)state;
    struct file_writer writer;
    int descriptor;
    char temporary[64], name[64];
    EXPECT_OK(file_write_all(in_folder("theirs"), "theirs", 6));
    snprintf(temporary, sizeof temporary, "mine.tmp-%ld", (long)getpid());
    assert_int_equal(symlink("theirs", in_folder(temporary)), 0);
    EXPECT_OK(file_write_all(in_folder("mine"), "mine", 4));
    expect_content(in_folder("mine"), "mine");
    expect_content(in_folder("theirs"), "theirs");
    assert_int_equal(symlink("theirs", in_folder(".probe")), 0);
    EXPECT_OK(file_try_folder(folder, ".probe"));
    expect_content(in_folder("theirs"), "theirs");
    // A link to a file is followed and stays; where it leads nowhere it is replaced.
    assert_int_equal(symlink("mine", in_folder("link")), 0);
    assert_int_equal(symlink("none", in_folder("broken")), 0);
    EXPECT_OK(file_write_all(in_folder("link"), "new", 3));
    EXPECT_OK(file_write_all(in_folder("broken"), "new", 3));
    expect_content(in_folder("mine"), "new");
    assert_true(readlink(in_folder("link"), name, sizeof name) == 4);
    assert_true(readlink(in_folder("broken"), name, sizeof name) < 0);
    EXPECT_FAILURE(STATUS_INVALID, file_writer_open(&writer, folder), folder, "is a folder");
    EXPECT_FAILURE(STATUS_INVALID, file_lock(in_folder("theirs"), &descriptor), "/theirs",
                   "not a lock file of this program");
    assert_int_equal(descriptor, -1);
    expect_content(in_folder("theirs"), "theirs");
    assert_int_equal(entries(folder), 4);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_read),
        TEST(test_read_at),
        TEST(test_write),
        TEST(test_disk_full),
        TEST(test_append),
        TEST(test_waiting_for_the_disk),
        TEST(test_folders),
        TEST(test_remove_tree),
        TEST(test_glob),
        TEST(test_lock),
        TEST(test_regular_files_only),
        TEST(test_read_stream),
        TEST(test_links_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
