/* A process whose memory nobody may read asks for the device that its parent has open. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    int fd = open(words[1], O_RDWR), status = -1;
    if (count < 2 || fd < 0 || lseek(fd, 0, SEEK_SET))
        return 1;
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_DUMPABLE, 0);
        for (int i = 0; i < 2; i++)
            if (open(words[1], O_RDWR) >= 0 || errno != ENOENT)
                _exit(2);
        _exit(0);
    }
    waitpid(child, &status, 0);
    printf("%d %d\n", status, (int)lseek(fd, 0, SEEK_SET));
    return 0;
}
