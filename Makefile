# zero.c: `make` builds ./train; `make test` builds and runs every test that needs no network.
#   make VARIANT=asan      address and undefined-behaviour sanitizers, in build/asan
#   make VARIANT=tsan CC=clang  thread sanitizer, in build/tsan-clang
#   make CC=clang          another compiler, in build/release-clang
#   make CUDA_ARCH="80 90" CUDA kernels for these compute capabilities, or "all"; default: those of this machine's GPUs
#   make CUDA=no           without CUDA, even if nvcc is installed
#   make ISAS="portable avx2"   CPU kernels for these instruction sets only, which builds faster
#   make VARIANT=cpu build/cpu/train    the release program without CUDA, beside the one with it
#   make VARIANT=fuzz CC=clang fuzz    fuzzers of the readers of untrusted files (tests/fuzz), in build/fuzz-clang
#   make VARIANT=cudasim   the CUDA backend on a simulated GPU (tests/cudasim); also cudasim-asan, cudasim-race
# Needs: a C17 compiler with an OpenMP library, oneDNN (2.x or 3.x), cJSON, utf8proc, xxHash, libsodium, zlib, zstd, hwloc,
# libmicrohttpd, libedit, an MPI; cmocka for the tests.
# scripts/install.sh installs them on Debian and Ubuntu. CUDA is built if nvcc is found (PATH or CUDA_HOME).

.DEFAULT_GOAL := train

CC ?= gcc
ifeq ($(origin CC),default)
  CC := gcc
endif
VARIANT ?= release
compiler := $(notdir $(firstword $(CC)))
suffix := $(if $(filter gcc cc,$(compiler)),,-$(compiler))
BUILD ?= build/$(VARIANT)$(suffix)

# The simulated GPU and VARIANT=cpu replace only kernels/cuda; they use the C objects of the release or asan variant.
simulated := $(filter cudasim%,$(VARIANT))
c_variant := $(if $(simulated),$(if $(filter %-asan,$(VARIANT)),asan,release),$(patsubst cpu,release,$(VARIANT)))
OBJECTS := $(if $(simulated)$(filter cpu,$(VARIANT)),build/$(c_variant)$(suffix),$(BUILD))

# DEBUG=-g1: debug information with lines but without variables compiles and links faster.
DEBUG ?= -g
warnings := -Wall -Wextra -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Werror
CPPFLAGS += -I. -D_GNU_SOURCE
CFLAGS += -std=c17 $(DEBUG) $(warnings) -fno-math-errno -fno-trapping-math -fno-omit-frame-pointer
# oneDNN comes with an OpenMP library, which kernels/cpu/onednn.c keeps to one thread.
LDFLAGS += -fopenmp
LDLIBS += -ldnnl -lcjson -lutf8proc -lxxhash -lsodium -lz -lzstd -lhwloc -lmicrohttpd -ledit -lm -lpthread -ldl

# Flags come from MPI's compiler wrapper. Its headers are system headers, so that they cause no warnings.
MPICC ?= mpicc
mpi_flags := $(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -compile_info 2>/dev/null | cut -d' ' -f2-)
mpi_libs := $(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -link_info 2>/dev/null | cut -d' ' -f2-)
LDLIBS += $(mpi_libs)
# The launcher beside that wrapper, for --ranks: mpicc.openmpi has mpiexec.openmpi.
mpi_launcher := $(firstword $(wildcard $(foreach f,$(subst mpicc,mpiexec,$(notdir $(MPICC))) mpiexec mpirun,\
                  $(dir $(shell command -v $(MPICC)))$(f))))

# For builds in which line numbers are enough for debugging. In the CUDA sources and with sanitizers, gcc spends more than
# half of its time tracking which register holds which variable. Clang accepts the flag and ignores it.
no_tracking := -fno-var-tracking
ifeq ($(c_variant),release)
  CFLAGS += -O3
else ifeq ($(c_variant),asan)
  sanitize := -fsanitize=address,undefined -fno-sanitize-recover=all
  CFLAGS += -O1 $(no_tracking) $(sanitize)
  LDFLAGS += -fsanitize=address,undefined
else ifeq ($(c_variant),tsan)
  CFLAGS += -O1 -fsanitize=thread
  LDFLAGS += -fsanitize=thread
  ifeq ($(filter clang%,$(compiler)),)
    $(error VARIANT=tsan needs CC=clang: the sanitizer does not see the synchronization inside gcc's OpenMP library)
  endif
else ifeq ($(c_variant),fuzz)
  CFLAGS += -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
  LDFLAGS += -fsanitize=fuzzer,address,undefined
  ifeq ($(filter clang%,$(compiler)),)
    $(error VARIANT=fuzz needs CC=clang, which has libFuzzer)
  endif
endif
ifeq ($(filter $(VARIANT),release cpu asan tsan fuzz cudasim cudasim-asan cudasim-race),)
  $(error VARIANT is release, cpu, asan, tsan, fuzz, cudasim, cudasim-asan or cudasim-race, not "$(VARIANT)")
endif

# Empty in a source tarball, which may have been unpacked inside another repository.
commit := $(if $(wildcard .git),$(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null))

# ---- what make prints: a line per folder when its first file is compiled; `make V=1` shows whole commands instead.
# $(call announce,GROUP,LINE) prints the line once in a run of make: a folder named after the group marks it, and
# only one of several jobs can create it.
announced := $(BUILD)/announced
began := $(shell rm -rf $(announced); date +%s)
ifeq ($(V),1)
  announce = @true
else
  quiet := @
  announce = @mkdir -p $(announced); mkdir $(announced)/$(subst /,_,$(strip $(1))) 2>/dev/null && echo $(2) || true
endif
# Printed before the first file: the number of files that were never compiled, and about how long they take. One core of
# Zen 4 takes 0.6 s per C file and 10 s per CUDA source and architecture.
jobs = $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),1)
never_compiled = $(filter-out $(wildcard $(1)),$(1))
core_seconds = $(words $(new_c)) * 6 / 10 + $(words $(new_cuda)) * $(or $(words $(cuda_archs)),1) * 10
start_line = "building $(BUILD) with $(CC)$(if $(cuda_archs),$(comma) CUDA for $(cuda_archs:%=sm_%)):" \
             "$(words $(new_c) $(new_cuda)) new files, about $$((($(core_seconds)) / $(jobs) + 1)) s with" \
             "$(jobs) job$(if $(filter 1,$(jobs)),; make -j$$(nproc) uses all cores,s)"
announce_compile = $(if $(new_c)$(new_cuda),$(call announce,start,$(start_line)))
comma := ,
group = $(patsubst $(OBJECTS),main.c,$(patsubst $(BUILD)/%,%,$(patsubst $(OBJECTS)/%,%,$(@D))))

# ---- libraries, one per folder, lowest first
# scripts/check_layout.py reads these lines: a file includes only its own folder and those that needs_FOLDER names.
# parts_FOLDER: subfolders that belong to it.
# Subfolders of cli may include cli, which declares the list of commands, but not the reverse; main.c may include any.
folders := base options data/tokenizer data data/text kernels model model/formats \
           zero/comm zero/partition zero/optimizer/rules zero/offload zero/checkpoint zero/stages zero/optimizer zero \
           infer infer/tasks infer/export trainer/data trainer/plan trainer/profile trainer/runs \
           trainer/output trainer \
           cli cli/bench cli/report cli/serve cli/tokenize
needs_base :=
needs_options := base
needs_data/tokenizer := base
needs_data := data/tokenizer base
needs_data/text := data data/tokenizer base
needs_kernels := base
needs_model := kernels base
needs_model/formats := model kernels base
needs_zero/comm := kernels base
parts_zero/comm := zero/comm/mpi zero/comm/nccl
needs_zero/partition := zero/comm model options kernels base
needs_zero/optimizer/rules := zero/partition $(needs_zero/partition)
needs_zero/offload := zero/optimizer/rules $(needs_zero/optimizer/rules)
needs_zero/checkpoint := zero/optimizer/rules data data/tokenizer $(needs_zero/optimizer/rules)
needs_zero/stages := zero/checkpoint zero/offload $(needs_zero/checkpoint)
needs_zero/optimizer := zero/stages $(needs_zero/stages)
needs_zero := zero/optimizer $(needs_zero/optimizer)
needs_infer := model/formats zero/checkpoint $(needs_zero/checkpoint)
needs_infer/tasks := model data data/tokenizer kernels base
needs_infer/export := infer $(needs_infer)
needs_trainer/profile := zero/comm model kernels base
needs_trainer/plan := zero trainer/profile infer model/formats $(needs_zero)
needs_trainer/runs := base
needs_trainer/data := data data/tokenizer options base
needs_trainer/output := trainer/runs infer/tasks zero/checkpoint $(needs_zero/checkpoint)
needs_trainer := trainer/data trainer/plan trainer/output trainer/runs infer/tasks $(needs_trainer/plan)
needs_cli := data/text trainer trainer/runs infer/export $(needs_trainer)
needs_cli/bench := cli trainer/plan options data data/tokenizer model kernels base
needs_cli/report := cli trainer trainer/runs options base
needs_cli/serve := cli trainer infer model/formats data data/tokenizer model kernels base
needs_cli/tokenize := cli trainer data/text $(needs_trainer)

# CPU kernels that are compiled once per instruction set; kernels/cpu/simd.h defines its vector types.
isa_sources := $(wildcard kernels/cpu/isa/*.c)
isas := $(or $(ISAS),portable avx2 avx512 avx512_bf16 amx)
isa_flags_portable :=
isa_flags_avx2 := -mavx2 -mfma -mf16c
isa_flags_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c
isa_flags_avx512_bf16 := $(isa_flags_avx512) -mavx512bf16
isa_flags_amx := $(isa_flags_avx512_bf16) -mamx-tile -mamx-bf16
machine := $(shell $(CC) -dumpmachine)
ifeq ($(filter x86_64%,$(machine)),)
  isas := portable
endif

sources_kernels := $(wildcard kernels/*.c kernels/cpu/*.c) $(filter-out kernels/cuda/stub.c,$(wildcard kernels/cuda/*.c kernels/cuda/*/*.c))
objects_kernels := $(sources_kernels:%.c=$(OBJECTS)/%.o) \
                   $(foreach isa,$(isas),$(isa_sources:kernels/cpu/isa/%.c=$(OBJECTS)/kernels/cpu/$(isa)/%.o))
embedded_of = $(wildcard $(1)/*.html $(1)/*.css $(1)/*.js)
objects_of = $(if $(filter kernels,$(1)),$(objects_kernels),\
                  $(patsubst %.c,$(OBJECTS)/%.o,$(wildcard $(patsubst %,%/*.c,$(1) $(parts_$(1))))) \
                  $(patsubst %,$(OBJECTS)/%.o,$(embedded_of)))
library = $(OBJECTS)/lib$(subst /,_,$(1)).a

# ---- kernels/cuda, as a separate library: built by nvcc, for the simulated GPU, or a stub
cuda_sources := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
cuda_library := $(BUILD)/libcuda.a
NVCC ?= $(firstword $(if $(CUDA_HOME),$(wildcard $(CUDA_HOME)/bin/nvcc)) \
                    $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
# CUDA_LAUNCHER=ccache runs nvcc through ccache, which has no link for it in its folder.
# Builds with sanitizers or another C compiler have no CUDA: nvcc uses its own host compiler.
CUDA ?= $(if $(filter release,$(VARIANT)),$(if $(suffix),no,$(if $(NVCC),yes,no)),no)
CXX ?= g++
cxx_warnings := -Wall -Wextra -Wshadow -Wpointer-arith -Werror

ifneq ($(simulated),)
  cuda_objects := $(cuda_sources:%.cu=$(BUILD)/%.o)
  simulator_objects := $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out tests/cudasim/test_%,$(wildcard tests/cudasim/*.cpp)))
  CXX := $(if $(filter clang%,$(compiler)),$(subst clang,clang++,$(CC)),g++)
  simulator_flags := -Itests/cudasim/include -I. -D_GNU_SOURCE -std=c++17 $(DEBUG) $(no_tracking) $(if $(sanitize),-O1,-O2) \
                     $(cxx_warnings) -fopenmp -Wno-unknown-pragmas -ffp-contract=off -fno-math-errno -fno-omit-frame-pointer \
                     -fno-optimize-sibling-calls $(sanitize)
  # The instrumentation reports every access of a kernel to tests/cudasim/race.cpp, which replaces the sanitizer's library.
  kernel_flags := $(if $(filter %-race,$(VARIANT)),-fsanitize=thread -O1)
  # The program finds libraries by name at run time, so the linker needs a flag to keep their simulations.
  cuda_link := -rdynamic -Wl,--undefined=cublasLtCreate -Wl,--undefined=ncclGetVersion -Wl,--undefined=cudnnBackendExecute \
               -lstdc++ -ldl
else ifeq ($(CUDA),yes)
  cuda_objects := $(cuda_sources:%.cu=$(BUILD)/%.o)
  cuda_home := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
  # CUDA_ARCH=all: the architectures of a release. Default: those of this machine's GPUs, as the driver lists them. For
  # a GPU that nvcc does not know yet: the newest architecture that it knows, whose PTX the driver compiles. Without a
  # GPU: the oldest, whose PTX runs on every later GPU; the driver compiles it for some seconds at the first start.
  supported_archs := $(filter-out 5% 6% 7%,$(patsubst compute_%,%,$(shell $(NVCC) --list-gpu-arch)))
  release_archs := $(filter 80 86 89 90 100 120,$(supported_archs))
  ifeq ($(CUDA_ARCH),all)
    cuda_archs := $(release_archs)
  else ifneq ($(strip $(CUDA_ARCH)),)
    cuda_archs := $(CUDA_ARCH)
  else
    gpus_here := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | grep -x '[0-9]*' | sort -nu)
    gpus_here := $(filter-out 5% 6% 7%,$(gpus_here))
    cuda_archs := $(filter $(supported_archs),$(gpus_here))
    cuda_archs += $(if $(filter-out $(supported_archs),$(gpus_here)),$(filter-out $(cuda_archs),$(lastword $(release_archs))))
    ifeq ($(strip $(cuda_archs)),)
      cuda_archs := $(firstword $(release_archs))
      gpu_note := "no GPU here: CUDA for sm_$(cuda_archs) only, which later GPUs run too." \
                  "CUDA_ARCH=all builds for $(release_archs:%=sm_%), CUDA=no without CUDA"
    endif
  endif
  # PTX of the oldest architecture, for GPUs without their own code in this build, and of the newest, for later GPUs.
  ptx_archs := $(sort $(firstword $(release_archs)) $(lastword $(cuda_archs)))
  nvcc_flags := -std=c++17 -O3 -g -lineinfo -I. -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-fno-omit-frame-pointer,$(no_tracking) \
                $(foreach arch,$(cuda_archs),-gencode arch=compute_$(arch),code=sm_$(arch)) \
                $(foreach arch,$(ptx_archs),-gencode arch=compute_$(arch),code=compute_$(arch))
  cuda_link := -L$(cuda_home)/lib64 -lcudart_static -lstdc++ -ldl -lrt
else
  stub_object := $(OBJECTS)/kernels/cuda/stub.o
endif
LDLIBS += $(cuda_link)

$(BUILD)/kernels/cuda/%.o: kernels/cuda/%.cu
	@mkdir -p $(@D)
	$(announce_compile)
	$(call announce,$(@D),"  compile $(group)")
ifneq ($(simulated),)
	$(quiet)$(CXX) -x c++ $(simulator_flags) $(kernel_flags) -MMD -MP -c -o $@ $<
else
	$(if $(gpu_note),$(call announce,gpu-note,$(gpu_note)))
	$(quiet)$(NVCC) --version | sed -n '/release/s/.*release //p' >$(@D)/nvcc-version
	$(quiet)$(CUDA_LAUNCHER) $(NVCC) $(nvcc_flags) -Xptxas -v -MMD -MP -c -o $@ $< 2>$(@:.o=.log) || { cat $(@:.o=.log) >&2; exit 1; }
endif

$(BUILD)/tests/cudasim/test_%.o: kernel_flags_here = $(kernel_flags)
# Matrix products dominate simulated training runs: vectorize them, and do not check for overflow.
$(BUILD)/tests/cudasim/ptx.o $(BUILD)/tests/cudasim/cublaslt_product.o $(BUILD)/tests/cudasim/cudnn_graph.o: \
  kernel_flags_here = -O3 -fno-trapping-math -fno-sanitize=undefined
$(BUILD)/tests/cudasim/%.o: tests/cudasim/%.cpp
	@mkdir -p $(@D)
	$(announce_compile)
	$(call announce,$(@D),"  compile $(group)")
	$(quiet)$(CXX) $(simulator_flags) $(kernel_flags_here) -MMD -MP -c -o $@ $<

# A file whose name contains the CUDA settings, so that CUDA objects are rebuilt when the settings change.
empty :=
cuda_choice := $(BUILD)/cuda-$(CUDA)$(if $(filter yes,$(CUDA)),-$(subst $(empty) ,-,$(strip $(cuda_archs))))
$(cuda_choice):
	@mkdir -p $(@D)
	@rm -f $(BUILD)/cuda-*
	@touch $@
$(cuda_objects): $(cuda_choice)

$(cuda_library): $(cuda_objects) $(stub_object) $(simulator_objects) $(cuda_choice)
	@mkdir -p $(@D)
	@rm -f $@
	$(quiet)$(AR) rcs $@ $(filter %.o,$^)

# A link to the program built last by `make train`; tests use $(BUILD)/train.
train: $(BUILD)/train
	@ln -sf $< $@

link = $(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group

$(BUILD)/train: $(OBJECTS)/main.o $(foreach f,$(folders),$(call library,$(f))) $(cuda_library)
	@mkdir -p $(@D)
	$(quiet)$(link) $(LDLIBS)
	$(call announce,linked,"$@ is built$(if $(cuda_archs),$(comma) with CUDA for $(cuda_archs:%=sm_%)): $$(($$(date +%s) - $(began))) s")

define library_rule
$(call library,$(1)): $(call objects_of,$(1))
	@rm -f $$@
	$(quiet)$(AR) rcs $$@ $$^
endef
$(foreach f,$(folders),$(eval $(call library_rule,$(f))))

$(OBJECTS)/%.o: %.c
	@mkdir -p $(@D)
	$(announce_compile)
	$(call announce,$(@D),"  compile $(group)")
	$(quiet)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# Pages, styles and scripts are embedded in the program (base/embedded.h): cli/NAME/page.html becomes the symbols
# embedded_cli_NAME_page_html and embedded_cli_NAME_page_html_bytes.
embedded_symbol = embedded_$(subst -,_,$(subst .,_,$(subst /,_,$(1))))
define embedded_rule
$(OBJECTS)/$(1).o: $(1) Makefile
	@mkdir -p $$(@D)
	$$(announce_compile)
	$$(call announce,$$(@D),"  compile $$(group)")
	$(quiet)printf '%s\n' '.section .rodata' '.balign 8' '.globl $(2)_bytes' '$(2)_bytes: .quad 2f - 1f' \
	  '.globl $(2)' '$(2):' '1: .incbin "$(1)"' '2: .byte 0' '.section .note.GNU-stack,"",%progbits' | \
	  $(CC) -c -x assembler -o $$@ -
endef
$(foreach f,$(foreach g,$(folders),$(call embedded_of,$(g))),$(eval $(call embedded_rule,$(f),$(call embedded_symbol,$(f)))))

$(patsubst %.c,$(OBJECTS)/%.o,$(wildcard zero/comm/mpi/*.c)): CPPFLAGS += $(patsubst -I%,-isystem %,$(mpi_flags))

# A file that changes with the commit and the sources. It has the commit, which `./train --version` prints and
# checkpoints record, and a checksum of the sources and relevant flags, with which ranks compare their programs.
sources := $(shell { find main.c Makefile $(sort $(foreach f,$(folders),$(firstword $(subst /, ,$(f))))) \
             -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' -o -name Makefile | LC_ALL=C sort | xargs cksum; \
             echo '$(filter-out -g% -W%,$(CFLAGS))'; } | cksum | cut -d' ' -f1)
$(OBJECTS)/commit: always
	@mkdir -p $(@D)
	@echo '$(commit) $(sources)' | cmp -s - $@ || echo '$(commit) $(sources)' >$@
$(OBJECTS)/cli/version.o: $(OBJECTS)/commit
$(OBJECTS)/cli/version.o: CPPFLAGS += -DZERO_COMMIT='"$(commit)"' -DZERO_SOURCES='"$(sources)"' \
                                      $(patsubst -I%,-isystem %,$(mpi_flags))

$(OBJECTS)/cli/launch.o: CPPFLAGS += -DZERO_MPI_LAUNCHER='"$(mpi_launcher)"'

# The presets, one row each, for inclusion in options/option.c.
presets := $(sort $(wildcard configs/gpt*.json configs/*llama*.json configs/modern*.json configs/qwen*.json configs/smollm*.json))
$(OBJECTS)/options/presets.inc: $(presets) Makefile
	@mkdir -p $(@D)
	$(quiet)for preset in $(presets); do \
	  printf '{"%s",\n' $$preset; sed 's/\\/\\\\/g; s/"/\\"/g; s/.*/ "&\\n"/' $$preset; echo '},'; \
	done >$@
$(OBJECTS)/options/option.o: $(OBJECTS)/options/presets.inc
$(OBJECTS)/options/option.o: CPPFLAGS += -I$(OBJECTS)

define isa_rule
$(OBJECTS)/kernels/cpu/$(1)/%.o: kernels/cpu/isa/%.c
	@mkdir -p $$(@D)
	$$(announce_compile)
	$$(call announce,$$(@D),"  compile $$(group)")
	$(quiet)$(CC) $(CPPFLAGS) $(CFLAGS) $(isa_flags_$(1)) -DISA=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(isas),$(eval $(call isa_rule,$(isa))))
# A file whose name contains the list of presets, so that the file that includes them is recompiled when the list changes.
isa_choice := $(OBJECTS)/isas-$(subst $(empty) ,-,$(strip $(isas)))
$(isa_choice):
	@mkdir -p $(@D)
	@rm -f $(OBJECTS)/isas-*
	@touch $@
$(OBJECTS)/kernels/cpu/device.o: $(isa_choice)
$(OBJECTS)/kernels/cpu/device.o: CPPFLAGS += $(foreach isa,$(isas),-DHAVE_ISA_$(isa))

# ---- tests: tests/unit/FOLDER/test_*.c and tests/{ops,mpi}/test_FOLDER_*.c
# They link only FOLDER, its subfolders and the folders that these may include, so the linker too checks the include
# direction. tests/ref, the oracle, is a library of the tests alone.
# Tests on a simulated GPU: the simulator's own tests, and the tests that use a device.
test_sources := $(wildcard tests/unit/*/test_*.c tests/ops/test_*.c tests/mpi/test_*.c)
simulator_test_sources := $(wildcard tests/cudasim/test_*.cpp)
tests_of_device := tests/ops/test_kernels_cuda tests/ops/test_kernels_rotation \
                   tests/ops/test_kernels_training_sizes tests/unit/model/test_cuda tests/unit/model/test_cuda_rotation \
                   tests/unit/model/test_weights tests/unit/zero/test_newton_schulz tests/mpi/test_zero_comm_device
# This test compares hundreds of millions of numbers, so it uses OpenMP.
$(OBJECTS)/tests/ops/test_kernels_training_sizes.o: CFLAGS += -fopenmp
# TESTS="unit ops": only the tests in these folders of tests/.
tests := $(if $(simulated),$(tests_of_device:%=$(BUILD)/%) $(simulator_test_sources:%.cpp=$(BUILD)/%),\
              $(test_sources:%.c=$(BUILD)/%))
tests := $(if $(TESTS),$(filter $(foreach f,$(TESTS),$(BUILD)/tests/$(f)/%),$(tests)),$(tests))
test_folder = $(if $(filter tests/unit/%,$(1)),$(notdir $(patsubst %/,%,$(dir $(1)))),$(word 2,$(subst _, ,$(notdir $(1)))))
test_folders = $(filter $(1) $(1)/%,$(folders))
test_libraries = $(foreach f,$(sort $(test_folders) $(foreach t,$(test_folders),$(needs_$(t)))),$(call library,$(f)))
ref_library := $(OBJECTS)/tests/libref.a
$(ref_library): $(patsubst %.c,$(OBJECTS)/%.o,$(wildcard tests/ref/*.c))
	@rm -f $@
	$(quiet)$(AR) rcs $@ $^

define test_rule
$(BUILD)/$(1): $(OBJECTS)/$(1).o $(patsubst %.c,$(OBJECTS)/%.o,$(filter-out $(test_sources),$(wildcard $(dir $(1))*.c))) \
               $(call test_libraries,$(call test_folder,$(1))) \
               $(if $(filter base options data,$(call test_folder,$(1))),,$(ref_library) $(cuda_library))
	@mkdir -p $$(@D)
	$$(call announce,link-$$(@D),"  link $$(@D)")
	$(quiet)$$(link) $(LDLIBS) -lcmocka
endef
$(foreach t,$(test_sources:%.c=%),$(eval $(call test_rule,$(t))))

# Benchmarks that no command of the program covers: tests/bench/bench_*.c.
benches := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))
$(benches): $(BUILD)/%: $(OBJECTS)/%.o $(foreach f,$(folders),$(call library,$(f))) $(cuda_library)
	@mkdir -p $(@D)
	$(call announce,link-$(@D),"  link $(@D)")
	$(quiet)$(link) $(LDLIBS)

$(simulator_test_sources:%.cpp=$(BUILD)/%): %: %.o $(cuda_library) $(call library,kernels) $(call library,base)
	$(call announce,link-$(@D),"  link $(@D)")
	$(quiet)$(link) $(LDLIBS) -lcmocka

# Fuzzers: tests/fuzz/fuzz_FOLDER_*.c. Readers of files need no kernels, so kernels are not compiled for fuzzing. But
# the files of model/ that they need include those that count operations.
fuzzers := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
# Of trainer/, only the readers of run folders.
fuzz_needs_trainer := trainer/runs base
# Of cli/, only the reader of requests, so that the trainer is not compiled for fuzzing either.
fuzz_needs_cli := cli/serve infer data data/tokenizer base
fuzz_needs_model := model/formats model kernels base
fuzz_needs_data := data/text data data/tokenizer base
fuzz_needs_infer := infer/tasks data data/tokenizer base
define fuzzer_rule
$(1): $(1).o $(foreach f,$(filter-out kernels,$(or $(fuzz_needs_$(2)),$(2) $(needs_$(2)))),$(call library,$(f))) \
      $(if $(filter model,$(2)),$(OBJECTS)/kernels/cost.o)
	$$(call announce,link-$$(@D),"  link $$(@D)")
	$(quiet)$$(link) $(LDLIBS)
endef
$(foreach f,$(fuzzers),$(eval $(call fuzzer_rule,$(f),$(word 2,$(subst _, ,$(notdir $(f)))))))

new_c := $(call never_compiled,$(OBJECTS)/main.o $(foreach f,$(folders),$(call objects_of,$(f))) \
           $(if $(filter tests test,$(MAKECMDGOALS)),$(test_sources:%.c=$(OBJECTS)/%.o)))
new_cuda := $(call never_compiled,$(cuda_objects) $(simulator_objects))

# scripts/run_tests.sh runs every program of this list, and fails if one is missing.
tests: $(BUILD)/train $(benches) $(tests)
	$(quiet)printf '%s\n' $(tests:$(BUILD)/tests/%=%) >$(BUILD)/tests/list
fuzz: $(fuzzers)
test: tests
	scripts/run_tests.sh $(BUILD)

check:
	scripts/check_style.sh

format:
	git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' | xargs clang-format -i

clean:
	rm -rf build train

.PHONY: train tests fuzz test check format clean always
.SECONDARY: $(test_sources:%.c=$(OBJECTS)/%.o) $(simulator_test_sources:%.cpp=$(BUILD)/%.o)
-include $(shell find $(BUILD) $(OBJECTS) -name '*.d' 2>/dev/null)
