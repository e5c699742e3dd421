"""Copies a build with the libraries that it needs, for gpu_check.sh --build on a machine that has only the NVIDIA driver: to a
folder or, where the name ends in .tar.gz, to an archive, which takes a third of the space."""
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

PROGRAMS = ('train', 'tests/bench/bench_muon', *(f'tests/ops/test_kernels_{name}' for name in ('cuda', 'rotation', 'training_sizes')))
# Libraries of the C library and the driver, which must be the machine's own.
OF_THE_MACHINE = re.compile(r'^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|cuda|nvidia-.*))\.so')
WRAPPER = '''#!/bin/sh
# Runs the program with the libraries that were packed with it, after those of LD_LIBRARY_PATH.
here=$(dirname "$(realpath "$0")")
LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$here/{up}lib" exec "$here/{up}bin/{name}" "$@"
'''


# Runs mpirun, which finds its components and messages through these variables (Open MPI 4; PMIx has its own).
MPIRUN = '''#!/bin/sh
here=$(dirname "$(realpath "$0")")
export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}$here/lib" PATH="$here/mpi/bin:$PATH"
export OPAL_PREFIX="$here/mpi" OPAL_BINDIR="$here/mpi/bin" OPAL_LIBDIR="$here/lib" OPAL_PKGLIBDIR="$here/mpi/openmpi"
export OPAL_PKGDATADIR="$here/mpi/share" PMIX_MCA_mca_base_component_path="$here/mpi/pmix" PMIX_INSTALL_PREFIX="$here/mpi"
export OMPI_MCA_plm=isolated # ranks of this machine only, without ssh
exec "$here/mpi/bin/mpirun" "$@"
'''


def libraries_of(program):
    """The shared libraries of a program, as paths. Fails if one is missing."""
    out = subprocess.run(['ldd', program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r'^\s*(\S+) => not found', out, re.M):
        raise SystemExit(f'gpu_check: {program} needs {", ".join(missing)}, which this machine lacks')
    return {pathlib.Path(path) for name, path in re.findall(r'^\s*(\S+) => (/\S+)', out, re.M) if not OF_THE_MACHINE.match(name)}


def folder_of_open_mpi(name):
    """One of Open MPI's folders here, such as pkglibdir; None without it."""
    if not shutil.which('ompi_info'):
        return None
    out = subprocess.run(['ompi_info', '--path', name, '--parsable'], capture_output=True, text=True, check=False).stdout
    found = re.search(rf'^path:{name}:(/.*)$', out, re.M)
    return pathlib.Path(found[1]) if found else None


def fill_mpi(folder, libraries):
    """Copies mpirun with the components that need no library beside its own and `libraries`, for ranks on one machine. Adds what
    they need to `libraries`. MPI libraries other than Open MPI are left out; the check then skips the parts that need ranks."""
    components, messages = folder_of_open_mpi('pkglibdir'), folder_of_open_mpi('pkgdatadir')
    programs = {name: shutil.which(name) for name in ('mpirun', 'orted')}
    if not components or not all(programs.values()):
        return
    for name, path in programs.items():
        libraries.update(libraries_of(path))
        copy_program(path, folder / 'mpi' / 'bin' / name)
    of_pmix = libraries_of(components / 'mca_pmix_ext3x.so') if (components / 'mca_pmix_ext3x.so').exists() else set()
    libraries.update(of_pmix)
    names = {library.name for library in libraries}
    pmix = [library.resolve().parent / 'pmix' for library in of_pmix if library.name.startswith('libpmix')]
    for source, target in [(components, 'openmpi'), *((path, 'pmix') for path in pmix)]:
        for component in sorted(source.glob('*.so')):
            if {library.name for library in libraries_of(component)} <= names:
                copy_program(component, folder / 'mpi' / target / component.name)
    if messages and messages.is_dir():
        shutil.copytree(messages, folder / 'mpi' / 'share', ignore=lambda path, found: [n for n in found if not n.endswith('.txt')])
    wrapper = folder / 'mpirun'
    wrapper.write_text(MPIRUN.format())
    wrapper.chmod(0o755)


def copy_program(source, target):
    """Removes debugging information, if strip is installed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    if shutil.which('strip'):
        subprocess.run(['strip', '--strip-debug', target], stderr=subprocess.DEVNULL, check=False)


def is_archive(path):
    return path.name.endswith('.tar.gz')


def unpack(path, folder):
    """If the path is an archive, unpacks its build into the folder. Returns the path of the build."""
    if not is_archive(path):
        return path
    with tarfile.open(path) as archive:
        archive.extractall(folder, **({'filter': 'data'} if hasattr(tarfile, 'data_filter') else {}))
    return folder


def pack(build, target):
    """Writes the folder or archive and prints its size. Returns the exit code."""
    if target.exists() and (target.is_file() or any(target.iterdir())):
        print(f'gpu_check: {target} exists and is not empty; name another path')
        return 2
    for name in PROGRAMS:
        if not (build / name).exists():
            print(f'gpu_check: {build / name} does not exist; build it with: make tests')
            return 2
    if not is_archive(target):
        n_libraries = fill(build, target)
        size = sum(path.stat().st_size for path in target.rglob('*') if path.is_file())
    else:
        with tempfile.TemporaryDirectory(prefix='zero-') as folder:
            n_libraries = fill(build, pathlib.Path(folder))
            with tarfile.open(target, 'w:gz', compresslevel=1) as archive:
                for path in sorted(pathlib.Path(folder).iterdir()):
                    archive.add(path, path.name)
        size = target.stat().st_size
    print(f'{target}: {len(PROGRAMS)} programs, {n_libraries} libraries, {size / 2**20:.0f} MiB; '
          f'there: scripts/gpu_check.sh --build {target}')
    return 0


def fill(build, folder):
    """Copies the programs and their libraries. Returns the number of libraries."""
    libraries = set()
    for name in PROGRAMS:
        source = build / name
        libraries.update(libraries_of(source))
        copy_program(source, folder / 'bin' / source.name)
        wrapper = folder / name
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(WRAPPER.format(up='../' * name.count('/'), name=source.name))
        wrapper.chmod(0o755)
    fill_mpi(folder, libraries)
    for library in libraries:
        copy_program(library, folder / 'lib' / library.name)
    return len(libraries)
